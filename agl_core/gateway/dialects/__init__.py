"""Wire formats: requests and answers of chat completions, and their translation for dialects."""
