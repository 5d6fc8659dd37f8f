"""The ``wandb`` tracker: runs at Weights & Biases."""
