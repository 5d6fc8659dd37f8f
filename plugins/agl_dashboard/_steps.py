"""Numbers of steps as pages show them."""

from __future__ import annotations

from agl_core.types import Mode


def shown_step(mode: Mode, step: int) -> int:
    """Return a rollout's step as the reports of steps count: from 1 for training.

    An evaluation has the number of the step before it, so 0 for one before the first step.
    """
    return step + 1 if mode == "train" else step


def stored_step(mode: Mode | None, shown: int | None) -> int | None:
    """Return the step of a rollout for one that is shown; rollouts of all modes count as training."""
    if shown is None:
        return None
    return shown if mode in ("val", "test") else shown - 1
