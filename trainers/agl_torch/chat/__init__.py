"""The OpenAI chat completions dialect: messages to token ids, token ids to messages."""
