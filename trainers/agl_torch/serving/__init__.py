"""Generation of answers to many requests at the same time."""
