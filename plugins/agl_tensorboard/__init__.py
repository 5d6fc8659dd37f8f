"""The ``tensorboard`` tracker: event files for TensorBoard."""
