"""Training of a policy's weights on a batch."""
