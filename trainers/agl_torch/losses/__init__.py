"""Losses of the ``torch`` engine, one module each. They know nothing of algorithms."""

from agl_torch.losses.base import Loss, LossOutput, Terms
from agl_torch.losses.registry import make_loss

__all__ = ["Loss", "LossOutput", "Terms", "make_loss"]
