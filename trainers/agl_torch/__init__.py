"""Serve and train a Hugging Face causal language model in this process, on a CPU or a GPU."""
