"""Options and functions that the built-in rewards share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict

from agl_core.errors import RewardError
from agl_core.tracing import bounded, represent
from agl_core.types import Score, Task

_MAX_SHOWN: Final = 300
"""Most characters of a value that a reason shows."""


class AnswerOptions(BaseModel):
    """Options of every built-in reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    field: str | None = None
    """Dotted path to the answer inside a structured output, such as ``answer.text``; an output
    without it scores 0."""


ABSENT: Any = object()
"""Marks an output that lacks the field."""


def answer(output: Any, field: str | None) -> Any:
    """Return the part of the output at `field`; `ABSENT` if the output lacks it."""
    for part in field.split(".") if field else ():
        if isinstance(output, Mapping):
            output = cast("Mapping[str, Any]", output).get(part, ABSENT)
        elif isinstance(output, Sequence) and not isinstance(output, (str, bytes)):
            items = cast("Sequence[Any]", output)
            index = int(part) if part.isdecimal() else len(items)
            output = items[index] if index < len(items) else ABSENT
        else:
            output = getattr(output, part, ABSENT)
    return output


def absent(field: str | None) -> Score:
    """Return the score of an output that lacks the field."""
    return Score(0.0, f"the output has no field {field!r}")


def shown(value: Any) -> str:
    """Return a value as a reason shows it: its ``repr``, of bounded length."""
    return bounded(represent(value), _MAX_SHOWN)[0]


def expected(task: Task, reward: str) -> Any:
    """Return the expected answer of a task.

    Raises:
        RewardError: the task has none.
    """
    if task.expected is None:
        raise RewardError(
            f"Reward {reward!r} needs the expected answer, but task {task.id!r} has none: "
            f"give the row an 'expected' field"
        )
    return task.expected
