"""The ``verl`` engine: trains on a Ray cluster with verl."""
