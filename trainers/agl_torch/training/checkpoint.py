"""The optimizer's state on disk."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

import torch

from agl_core.errors import TrainingError

STATE: Final = "training_state.pt"


def save_state(optimizer: torch.optim.Optimizer, names: list[str], directory: Path) -> None:
    """Write the optimizer's state with the names of its parameters."""
    torch.save({"names": names, "optimizer": optimizer.state_dict()}, directory / STATE)


def load_state(optimizer: torch.optim.Optimizer, names: list[str], directory: Path) -> None:
    """Restore the state of `save_state`, but keep current settings such as the learning rate.

    If the directory has no state file, clear the optimizer's state.

    Raises:
        TrainingError: the state is unreadable or belongs to other parameters.
    """
    path = directory / STATE
    if not path.is_file():
        optimizer.state.clear()
        return
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(
            f"Optimizer state {str(path)!r} cannot be read: delete it to continue with a "
            f"fresh optimizer"
        ) from error
    if state["names"] != names:
        raise TrainingError(
            f"Optimizer state {str(path)!r} is about other weights than are trained now: resume "
            f"with the engine options it was saved with"
        )
    saved = state["optimizer"]
    for group, kept in zip(
        saved["param_groups"], optimizer.state_dict()["param_groups"], strict=True
    ):
        group.update({key: value for key, value in kept.items() if key != "params"})
    optimizer.load_state_dict(saved)
