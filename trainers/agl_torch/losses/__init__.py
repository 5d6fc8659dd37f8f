"""Losses of the ``torch`` engine, one module each, independent of algorithms."""

from agl_torch.losses._base import Loss, LossOutput, Terms

__all__ = ["Loss", "LossOutput", "Terms"]
