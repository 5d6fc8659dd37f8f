"""The OpenAI chat completions API: from messages to token ids, and from token ids to messages."""
