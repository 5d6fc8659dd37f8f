"""Tasks and reward of the example: three sets of the demo's shop that share no item."""

from __future__ import annotations

from agl_demo.training import reward, rows

import agl_core as agl

__all__ = ["few_val_tasks", "held_out_tasks", "reward", "train_tasks", "val_tasks"]

_SEED = 1
_TRAIN, _VAL, _FEW_VAL, _HELD_OUT = 120, 60, 20, 200


def train_tasks() -> list[agl.Task]:
    """Return questions whose best answers may become demonstrations."""
    return rows("train", _TRAIN + _VAL, _SEED)[:_TRAIN]


def val_tasks() -> list[agl.Task]:
    """Return questions that choose a prompt."""
    return rows("train", _TRAIN + _VAL, _SEED)[_TRAIN:]


def few_val_tasks() -> list[agl.Task]:
    """Return the first of `val_tasks`."""
    return val_tasks()[:_FEW_VAL]


def held_out_tasks() -> list[agl.Task]:
    """Return questions that neither make nor choose a prompt, for the reported score."""
    return rows("held_out", _HELD_OUT, _SEED)
