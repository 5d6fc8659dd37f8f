"""One attempt's spans, sorted by what they can tell the join."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from agl_core import semconv
from agl_core.adapters import _evidence
from agl_core.errors import CaptureError
from agl_core.interfaces import AttemptRecord
from agl_core.types import ModelCall, Span, SpanKind


@dataclass(slots=True)
class RecordedSpans:
    """What each recorder says of one attempt."""

    structure: dict[str, Span] = field(default_factory=dict[str, Span])
    """Call id to the client's span."""
    unsent: list[Span] = field(default_factory=list[Span])
    """LLM spans of the client without a call id."""
    answers: dict[str, list[ModelCall]] = field(default_factory=lambda: defaultdict(list))
    """Call id to the gateway's records, earlier tries included."""
    failures: list[Span] = field(default_factory=list[Span])
    """Capture errors that a recorder noted."""
    by_id: dict[str, Span] = field(default_factory=dict[str, Span])
    single_clock: bool = True
    """One recorder numbered all the client's spans, so their sequence is the causal order."""


def sort_spans(record: AttemptRecord) -> RecordedSpans:
    """Sort an attempt's spans.

    Raises:
        CaptureError: a span belongs to another attempt, or two client spans name one call.
    """
    found = RecordedSpans()
    sequences: set[int] = set()
    for span in record.spans:
        if span.attempt_id != record.attempt.id:
            raise CaptureError(
                f"Span {span.id!r} belongs to attempt {span.attempt_id!r}, not to "
                f"{record.attempt.id!r}: read the spans of one attempt only"
            )
        if span.call is not None:
            found.answers[span.call.id].append(span.call)
            continue
        found.by_id[span.id] = span
        found.single_clock = found.single_clock and span.sequence not in sequences
        sequences.add(span.sequence)
        if span.kind is SpanKind.MESSAGE and span.name == semconv.AGL_CAPTURE_ERROR:
            found.failures.append(span)
        elif span.kind is SpanKind.LLM:
            _add_client_span(found, span)
    return found


def _add_client_span(found: RecordedSpans, span: Span) -> None:
    if span.call_id is None:
        found.unsent.append(span)
        return
    other = found.structure.setdefault(span.call_id, span)
    if other is not span:
        framework = _evidence.framework_of(span, found.by_id)
        where = _evidence.describe(span.call_id, agent=span.agent, framework=framework)
        raise CaptureError(
            f"{where} is claimed by two spans, {other.name!r} and {span.name!r}: attach one "
            f"integration per client, so that each call is recorded once"
        )
