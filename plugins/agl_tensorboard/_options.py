"""Options of the tracker."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TensorBoardOptions(BaseModel):
    """Options of the tracker ``tensorboard``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    directory: str | None = None
    """Event files go into the folder ``<run name>`` in it; into ``tensorboard`` in the run's
    directory when None."""
