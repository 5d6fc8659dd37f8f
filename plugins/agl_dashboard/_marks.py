"""Marks of calls as pages show them, and changes that pages send."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from agl_records import Mark, MarkChange, MarkFilter

from agl_core.errors import ConfigError, StoreError
from agl_dashboard._panel import View


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMarks:
    """The marks of one rollout."""

    write: bool = False
    """Whether the page may change them."""
    problem: str = ""
    """Why they cannot be read; empty if they can."""
    found: Mapping[tuple[str, str, int], Mark] = field(
        default_factory=dict[tuple[str, str, int], Mark]
    )
    """Marks by attempt, call and choice."""

    def of(self, attempt: str, call: str, choice: int) -> Mark | None:
        """Return the mark of an answer."""
        return self.found.get((attempt, call, choice))

    def verdict(self, attempt: str, call: str | None) -> str:
        """Return the verdict on the first marked answer of a call; empty for none."""
        own = [mark for mark in self.found.values() if (mark.attempt, mark.call) == (attempt, call)]
        return min(own, key=lambda mark: mark.choice).verdict if own else ""


async def rollout_marks(view: View, rollout_id: str) -> RolloutMarks:
    """Return the marks of a rollout, or why they cannot be read."""
    marks = view.sources.marks(view.run)
    if marks is None:
        return RolloutMarks()
    write = view.sources.writing.write
    try:
        found = await asyncio.to_thread(marks.read, MarkFilter(rollout=rollout_id))
    except StoreError as error:
        return RolloutMarks(write=write, problem=str(error))
    by_answer = {(mark.attempt, mark.call, mark.choice): mark for mark in found}
    return RolloutMarks(write=write, found=by_answer)


class SentChange(MarkChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a mark, as a page sends it."""

    rollout: str
    attempt: str
    call: str
    choice: int = 0

    @classmethod
    def parse(cls, sent: Mapping[str, Any]) -> SentChange:
        """Read a change.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong kind.
        """
        try:
            return msgspec.convert(dict(sent), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"The change of a mark is malformed: {error}") from error
