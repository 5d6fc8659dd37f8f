"""Options of the tracker. The key is not an option: use ``WANDB_API_KEY`` or a login."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class WandbOptions(BaseModel):
    """Options of the tracker ``wandb``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    project: str | None = None
    """``WANDB_PROJECT`` when None, or else ``agl``."""
    entity: str | None = None
    """User or team; ``WANDB_ENTITY`` when None, or else that of the key."""
    mode: Literal["online", "offline"] | None = None
    """``offline`` writes into the run's directory alone, for ``wandb sync`` later; ``WANDB_MODE``
    when None, or else online."""
    group: str | None = None
    """Runs that belong together."""
    tags: list[str] = Field(default_factory=list[str])
    """Of the run."""
