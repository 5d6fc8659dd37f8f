"""OpenAI's legacy completions and its embeddings at the gateway."""
