"""Options of the ``verl`` engine."""

from __future__ import annotations

from typing import Any, Literal

from agl_torch.sources import check_source
from pydantic import Field, PositiveInt

from agl_core.config import EngineOptions


class VerlOptions(EngineOptions):
    """Where verl runs, and how a batch is laid out for it."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: GPUs where the Ray cluster has any, else the CPU of this machine."""
    ray_address: str | None = None
    """A running Ray cluster, ``auto`` for the one of this machine. None: what ``RAY_ADDRESS`` says,
    or else a cluster of the run's own on this machine."""
    rows: Literal["merged", "transition"] = "merged"
    """``merged``: calls that continue each other share a row, which is computed once.
    ``transition``: a row per call."""
    max_row_tokens: PositiveInt | None = None
    """Longest row. None: what verl puts into one micro-batch, ``actor.ppo_max_token_len_per_gpu``."""
    overlong: Literal["error", "drop"] = "error"
    """What becomes of a call that is longer with its prompt. Baselines are taken before it is
    dropped, and drops are counted."""
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """verl's own options, as in its ``ppo_trainer.yaml``: ``actor_rollout_ref``, ``ray_kwargs`` and
    of ``trainer`` the numbers of nodes and GPUs. May be written as the table ``[verl]``."""

    def check_model(self, model: str) -> None:
        """Check the model's path without importing verl.

        Raises:
            ConfigError: see `check_source`.
        """
        check_source(model)
