"""The plain OpenAI client for agl-core; nothing here is needed in the user's code."""
