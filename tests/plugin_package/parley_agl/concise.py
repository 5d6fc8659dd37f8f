"""The reward ``concise``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from agl_core import AttemptRecord, Task


class ConciseOptions(BaseModel):
    """Options of `Concise`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    words: PositiveInt = 8
    """Words that cost nothing."""
    cost: float = Field(default=0.1, ge=0)
    """Taken off for every further word; the reward never falls below 0."""


class Concise:
    """1.0 for an answer that holds ``task.expected``, less what its length costs; else 0.0."""

    def __init__(self, **options: Any) -> None:
        self._options = ConciseOptions.model_validate(options)

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> float:
        del attempt
        text = str(output)
        if str(task.expected) not in text:
            return 0.0
        extra = max(len(text.split()) - self._options.words, 0)
        return max(1.0 - self._options.cost * extra, 0.0)
