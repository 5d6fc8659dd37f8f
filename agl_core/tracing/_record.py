"""A span while its attempt goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from agl_core import semconv
from agl_core.tracing.values import bounded, text
from agl_core.types import Reward, Span, SpanKind, SpanStatus

MAX_ERROR_CHARS: Final = 16_384


@dataclass(slots=True, eq=False)
class Reading:
    """How far the answer of a model call has been read."""

    taken: int = 0
    """Bytes."""
    ended: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """What is known of a span so far; `Span` says what the fields mean."""

    id: str
    kind: SpanKind
    name: str
    parent_id: str | None
    agent: str | None
    agent_run_id: str | None
    start_ns: int
    end_ns: int = 0
    sequence: int = 0
    status: SpanStatus = "unset"
    error: str = ""
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    call_id: str | None = None
    reward: Reward | None = None
    reading: Reading | None = None

    def span(self, rollout_id: str, attempt_id: str) -> Span:
        """As it is stored."""
        return Span(
            id=self.id,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            kind=self.kind,
            name=bounded(text(self.name), MAX_ERROR_CHARS)[0],
            parent_id=self.parent_id,
            agent=self.agent or None,
            agent_run_id=text(self.agent_run_id) if self.agent_run_id else None,
            sequence=self.sequence,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            status=self.status,
            error=self.error,
            attributes=self._attributes(),
            call_id=self.call_id,
            reward=self.reward,
        )

    def _attributes(self) -> dict[str, Any]:
        attributes = dict(self.attributes)
        if self.reading is not None and not self.reading.ended:
            attributes[semconv.AGL_READ] = self.reading.taken
        return attributes
