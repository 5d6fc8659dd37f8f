"""One row of the data set."""

from __future__ import annotations

from typing import Any

import msgspec

from agl_core.errors import ConfigError


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset row, handed to the agent and to the reward."""

    id: str
    """Unique within its data set; groups, seeds and reports refer to it."""
    input: Any = None
    """What the agent gets; any JSON value."""
    expected: Any = None
    """Reference answer for rewards, if there is one."""
    metadata: dict[str, Any] = {}


def as_task(row: Any, *, index: int) -> Task:
    """Turn a row into a `Task`: a Task as is, a mapping with task fields, else the row as input.

    Raises:
        ConfigError: a mapping that has task fields mixes them with unknown ones.
    """
    if isinstance(row, Task):
        return row
    fields = set(Task.__struct_fields__)
    if isinstance(row, dict) and "input" in row:
        unknown = sorted(str(key) for key in row if key not in fields)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if unknown:
            raise ConfigError(
                f"Task {index} has unknown fields {unknown}: put them under 'metadata', "
                f"or drop the key 'input' to pass the whole row as input"
            )
        return msgspec.convert({"id": str(index), **row}, Task)
    return Task(id=str(index), input=row)
