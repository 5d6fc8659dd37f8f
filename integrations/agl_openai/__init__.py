"""OpenAI client integration; user code does not import it."""
