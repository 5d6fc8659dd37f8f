"""The spans of one attempt, kept in memory until the attempt ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from msgspec.structs import replace

from agl_core import semconv
from agl_core.clocks import new_id, wall_ns
from agl_core.tracing._scopes import current_scope
from agl_core.tracing._values import bounded, describe, exception_attributes, reason, text
from agl_core.types import Losses, Reward, Scope, Span, SpanKind, SpanStatus

MAX_SPANS: Final = 10_000
MAX_VALUE_CHARS: Final = 262_144
MAX_ERROR_CHARS: Final = 16_384


@dataclass(slots=True, eq=False)
class ReadProgress:
    """How far the program has read the answer of a model call."""

    taken: int = 0
    """In bytes."""
    ended: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """The mutable form of a span, with the fields of `Span`."""

    id: str
    kind: SpanKind
    name: str
    parent_id: str | None
    agent: str | None
    agent_run_id: str | None
    start_ns: int
    attributes: dict[str, Any]
    end_ns: int = 0
    sequence: int = 0
    status: SpanStatus = "unset"
    error: str = ""
    call_id: str | None = None
    reward: Reward | None = None
    reading: ReadProgress | None = None

    def span(self, rollout_id: str, attempt_id: str) -> Span:
        """Return the span in the form that the store takes."""
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


_log = logging.getLogger(__name__)


class Recorder:
    """Collects one attempt's spans from any thread or task; never raises into user code.

    Memory is bounded: spans beyond `max_spans` are dropped and long values are cut. LLM spans,
    rewards and capture errors are never dropped, because results would be wrong without them.
    `dropped`, `truncated` and `late` count the losses.
    """

    def __init__(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        max_spans: int = MAX_SPANS,
        max_value_chars: int = MAX_VALUE_CHARS,
        on_late: Callable[[Span], None] | None = None,
    ) -> None:
        """Start empty.

        Args:
            rollout_id: Written into every span.
            attempt_id: Written into every span.
            max_spans: Most spans that are kept.
            max_value_chars: Most characters that are kept of one attribute's value.
            on_late: Called with every span that begins after `drain`, in the thread that tries to
                record it.
        """
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.dropped = 0
        """Number of spans dropped beyond `max_spans`."""
        self.truncated = 0
        """Number of attribute values and reasons of rewards that were cut."""
        self.late = 0
        """Number of spans that began after `drain`; they are not kept."""
        self.losses = Losses()
        """Requests without a record, by cause: the counts of `lose` before `drain`."""
        self._max_spans = max_spans
        self._max_value_chars = max_value_chars
        self._on_late = on_late
        self._records: dict[str, Record] = {}
        self._sequence = 0
        self._closed = False
        self._lock = Lock()

    def start(  # noqa: PLR0913  the fields of a Span, all by keyword
        self,
        kind: SpanKind,
        name: str,
        *,
        span_id: str | None = None,
        parent_id: str | None = None,
        agent: str | None = None,
        agent_run_id: str | None = None,
        call_id: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        scope: Scope | None = None,
    ) -> str:
        """Begin a span and return its id; ids sort by time.

        Without `parent_id` the span's parent is the current scope's span, or the attempt if no
        scope is open; with an empty `parent_id` it is the attempt. Agent and agent run come from
        that scope or, with `parent_id`, from the parent's span; a span inside a tool has no agent
        unless one is named. An empty `agent` means no agent, also for the spans below. A caller
        that knows the current scope passes it as `scope`.
        """
        record = self._record(kind, name, span_id, parent_id, agent, agent_run_id, scope)
        record.call_id = call_id
        if attributes:
            self._merge(record, attributes)
        self._keep(record)
        return record.id

    def update(  # noqa: PLR0913  the fields of a Span, all by keyword
        self,
        span_id: str,
        *,
        kind: SpanKind | None = None,
        name: str | None = None,
        agent: str | None = None,
        agent_run_id: str | None = None,
        call_id: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Change or add to a span, ended or not; an unknown id is ignored."""
        record = self._records.get(span_id)
        if record is None:
            return
        record.kind = kind or record.kind
        record.name = name or record.name
        record.agent = text(agent) if agent else record.agent
        record.agent_run_id = agent_run_id or record.agent_run_id
        if call_id is not None:
            record.call_id = call_id
        if attributes:
            self._merge(record, attributes)

    def count(self, span_id: str, name: str) -> None:
        """Add one to a numeric attribute of a span; a missing one counts as 0."""
        record = self._records.get(span_id)
        if record is not None:
            record.attributes[name] = record.attributes.get(name, 0) + 1

    def sent_again(self, span_id: str) -> None:
        """Count another request of a model call and reset how far its answer has been read."""
        record = self._records.get(span_id)
        if record is not None:
            requests = record.attributes.get(semconv.AGL_REQUESTS, 1)
            record.attributes[semconv.AGL_REQUESTS] = requests + 1
            record.reading = None

    def reading(self, span_id: str) -> ReadProgress:
        """Return a new counter for a reader of a model call's answer; the last one counts."""
        reading = ReadProgress()
        record = self._records.get(span_id)
        if record is not None:
            record.reading = reading
        return reading

    def unread(self, span_id: str) -> None:
        """Record that the program received no answer, unless it has begun to read one."""
        record = self._records.get(span_id)
        if record is not None and record.reading is None:
            record.reading = ReadProgress()

    def end(
        self,
        span_id: str,
        *,
        status: SpanStatus = "ok",
        error: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End a span. A repeated call replaces the earlier end: the last try of a call counts."""
        record = self._records.get(span_id)
        if record is not None:
            self._close(record, status, error, attributes)

    def end_with(
        self,
        span_id: str,
        error: BaseException | None,
        *,
        control_flow: tuple[type[BaseException], ...] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End a span, with an exception as an error with its stack trace.

        Args:
            span_id: As in `end`.
            error: The exception, if any. A `GeneratorExit` is not a failure: a reader left a
                stream early.
            control_flow: Exceptions that a framework uses for control flow; not failures either.
            attributes: Attributes to add in every case.
        """
        record = self._records.get(span_id)
        if record is None:
            return
        if error is None or isinstance(error, (GeneratorExit, *control_flow)):
            self._close(record, "ok", attributes=attributes)
            return
        found = {**(attributes or {}), **exception_attributes(error)}
        self._close(record, "error", describe(error), found)

    def reward(self, reward: Reward) -> str:
        """Record a reward at the current time, as a span named after its channel."""
        record = self._record(SpanKind.REWARD, reward.channel)
        why, cut = reason(reward.why)
        record.reward = replace(reward, why=why)
        self.truncated += cut
        self._close(record, "ok")
        self._keep(record)
        return record.id

    def point(
        self,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        status: SpanStatus = "ok",
        error: str = "",
    ) -> str:
        """Record an event without duration as a message span."""
        record = self._record(SpanKind.MESSAGE, name)
        self._close(record, status, error, attributes)
        self._keep(record)
        return record.id

    def capture_error(
        self, message: str, *, call_id: str | None = None, framework: str = ""
    ) -> str:
        """Record that this attempt's data is not exact; the adapters drop the attempt.

        Args:
            message: What failed, the value, and the fix.
            call_id: The affected call.
            framework: The affected integration.
        """
        _log.debug("Attempt %s has a capture error: %s", self.attempt_id, message)
        attributes = {semconv.AGL_FRAMEWORK: framework} if framework else None
        record = self._record(SpanKind.MESSAGE, semconv.AGL_CAPTURE_ERROR)
        record.call_id = call_id
        self._close(record, "error", message, attributes)
        self._keep(record, always=True)
        return record.id

    def lose(self, cause: str, n: int = 1) -> None:
        """Count requests of this attempt without a record; after `drain`, through `on_late`."""
        with self._lock:
            if not self._closed:
                self.losses.add(cause, n)
                return
        if self._on_late is not None:
            record = self._record(SpanKind.MESSAGE, semconv.AGL_LOST)
            self._close(record, "ok", attributes={semconv.AGL_LOST: {cause: n}})
            self._on_late(record.span(self.rollout_id, self.attempt_id))

    def snapshot(self) -> list[Span]:
        """Return the spans so far in their stable order; open spans have `end_ns` 0."""
        with self._lock:
            records = list(self._records.values())
        return sorted(
            (record.span(self.rollout_id, self.attempt_id) for record in records),
            key=lambda span: span.order,
        )

    @property
    def closed(self) -> bool:
        """Whether `drain` has ended the recording."""
        return self._closed

    def drain(self) -> list[Span]:
        """End the recording and return its spans in their stable order.

        Open spans end as errors. Spans recorded afterwards are counted in `late`.
        """
        with self._lock:
            self._closed = True
            records = list(self._records.values())
            self._records = {}
        for record in records:
            if not record.end_ns:
                self._close(record, "error", "not ended")
        return sorted(
            (record.span(self.rollout_id, self.attempt_id) for record in records),
            key=lambda span: span.order,
        )

    # Hot path: every callback calls these methods, so they have few calls and positional arguments.

    def _record(  # noqa: PLR0913, PLR0917  as `start`
        self,
        kind: SpanKind,
        name: str,
        span_id: str | None = None,
        parent_id: str | None = None,
        agent: str | None = None,
        agent_run_id: str | None = None,
        scope: Scope | None = None,
    ) -> Record:
        """Make a span that begins now, with its parent and agent."""
        inherited: str | None = None
        run: str | None = None
        if agent is not None and type(agent) is not str:
            agent = text(agent)
        if parent_id is None:
            scope = scope or current_scope()
            if scope is not None:
                parent_id, inherited, run = scope.span_id, scope.agent, scope.agent_run_id
        elif (parent := self._records.get(parent_id)) and parent.kind is not SpanKind.TOOL:
            inherited, run = parent.agent, parent.agent_run_id
        if agent is None or agent == inherited:
            agent, agent_run_id = inherited, agent_run_id or run
        span_id = span_id or new_id("span")
        if kind is SpanKind.AGENT and agent:
            agent_run_id = agent_run_id or span_id
        # `{}`, as `dict[str, Any]()` takes six times as long.
        return Record(span_id, kind, name, parent_id or None, agent, agent_run_id, wall_ns(), {})

    def _keep(self, record: Record, always: bool = False) -> None:
        with self._lock:
            record.sequence = self._sequence
            self._sequence += 1
            if self._closed:
                self.late += 1
            elif len(self._records) < self._max_spans or always or _is_result(record):
                self._records[record.id] = record
                return
            else:
                self.dropped += 1
                return
        if self._on_late is not None:
            self._on_late(record.span(self.rollout_id, self.attempt_id))

    def _close(
        self,
        record: Record,
        status: SpanStatus,
        error: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        record.end_ns = max(wall_ns(), record.start_ns)
        record.status = status
        record.error = bounded(error, MAX_ERROR_CHARS)[0] if error else ""
        if attributes:
            self._merge(record, attributes)

    def _merge(self, record: Record, attributes: Mapping[str, Any]) -> None:
        kept, limit = record.attributes, self._max_value_chars
        for name, value in attributes.items():
            # Fast path of nearly all values.
            if (type(value) is str and len(value) <= limit and value.isascii()) or (
                type(value) is int
            ):
                kept[name] = value
                continue
            kept[name], cut = bounded(value, limit)
            if cut:
                self.truncated += 1


def _is_result(record: Record) -> bool:
    return record.kind is SpanKind.LLM or record.kind is SpanKind.REWARD
