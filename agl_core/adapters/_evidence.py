"""The records of one attempt from tracing and gateway, and checks that they are exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from agl_core import semconv
from agl_core.errors import CaptureError, EmptyAnswerError, MissingTokensError, TokenMismatchError
from agl_core.interfaces import AttemptRecord
from agl_core.types import Choice, Ints, ModelCall, Span, SpanKind

_LOGPROB_SLACK = 1e-3
"""Tolerance: rounding can make the log-probability of a certain token slightly positive."""
_LEAST_LOGPROB = -104.0
"""Least possible log-probability: below it, the probability is 0 in 32-bit floats. Some servers
write a lower number (-9999.0) instead of minus infinity."""


@dataclass(slots=True)
class RecordedSpans:
    """The spans of one attempt, by recorder and kind."""

    structure: dict[str, Span] = field(default_factory=dict[str, Span])
    """Client spans by call id."""
    unsent: list[Span] = field(default_factory=list[Span])
    """Client LLM spans without a call id."""
    answers: dict[str, list[ModelCall]] = field(default_factory=lambda: defaultdict(list))
    """Gateway records by call id, earlier tries included."""
    failures: list[Span] = field(default_factory=list[Span])
    """Spans with which a recorder reported a capture error."""
    by_id: dict[str, Span] = field(default_factory=dict[str, Span])
    single_clock: bool = True
    """Whether one recorder numbered all client spans; their sequence is then the causal order."""


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
        framework = framework_of(span, found.by_id)
        where = describe(span.call_id, agent=span.agent, framework=framework)
        raise CaptureError(
            f"{where} is claimed by two spans, {other.name!r} and {span.name!r}: attach one "
            f"integration per client, so that each call is recorded once"
        )


def framework_of(span: Span | None, spans: Mapping[str, Span]) -> str:
    """Return the framework that recorded a span, from the span or its nearest ancestor."""
    visited: set[str] = set()
    while span is not None and span.id not in visited:
        name = span.attributes.get(semconv.AGL_FRAMEWORK)
        if name:
            return str(name)
        visited.add(span.id)
        span = spans.get(span.parent_id or "")
    return ""


def describe(call_id: str | None, *, agent: str | None, framework: str) -> str:
    """Return a description of a call for error messages."""
    call = f"Call {call_id!r}" if call_id else "A call"
    speaker = f" of agent {agent!r}" if agent else ""
    recorder = f" (recorded by {framework})" if framework else ""
    return f"{call}{speaker}{recorder}"


def raise_recorded(span: Span, *, framework: str) -> NoReturn:
    """Raise the capture error that a recorder reported in a span.

    Raises:
        CaptureError: always.
    """
    reason = span.error or str(span.attributes.get(semconv.AGL_MESSAGE) or "no reason given")
    where = describe(span.call_id, agent=span.agent, framework=framework)
    raise CaptureError(f"{where} was not captured: {reason}")


def check_tokens(call: ModelCall, *, where: str) -> None:
    """Check that a call can be trained on exactly as it was sampled.

    Raises:
        MissingTokensError: ids or log-probabilities are missing. It is an `EmptyAnswerError` if the
            model ended its answer before the first token.
        TokenMismatchError: an id is negative, the numbers of ids, log-probabilities or choices do
            not match, or a log-probability is out of range.
        CaptureError: the log-probabilities are not those of the sampling distribution, or the
            temperature is not above 0.
    """
    if not call.prompt_token_ids or not call.choices:
        raise MissingTokensError(
            f"{where} carries {len(call.prompt_token_ids)} prompt ids and {len(call.choices)} "
            f"choices: serve its policy {call.policy!r} from a backend that returns token ids, "
            f"or do not train this agent"
        )
    indices = [choice.index for choice in call.choices]
    if len(indices) != call.sampling.n or len(set(indices)) != len(indices):
        raise TokenMismatchError(
            f"{where} asked for {call.sampling.n} choices and got those with index {indices}: "
            f"the backend or a proxy before it altered the answer"
        )
    _check_ids(call.prompt_token_ids, where=f"{where} has in its prompt the")
    for choice in call.choices:
        _check_choice(call, choice, where=f"{where}, choice {choice.index},")
    _check_distribution(call, where=where)


def _check_choice(call: ModelCall, choice: Choice, *, where: str) -> None:
    if not choice.token_ids:
        if not (choice.text or choice.reasoning or choice.tool_calls):
            raise EmptyAnswerError(
                f"{where} is empty: the model ended its answer before the first token, so there "
                f"is nothing to train on"
            )
        raise MissingTokensError(
            f"{where} carries no token ids: serve its policy {call.policy!r} from a backend that "
            f"returns them, or do not train this agent"
        )
    if not choice.logprobs:
        raise MissingTokensError(
            f"{where} has {len(choice.token_ids)} token ids but no log-probabilities: serve its "
            f"policy {call.policy!r} from a backend that returns them"
        )
    if len(choice.logprobs) != len(choice.token_ids):
        raise TokenMismatchError(
            f"{where} has {len(choice.token_ids)} token ids but {len(choice.logprobs)} "
            f"log-probabilities: the backend lost or merged tokens of its answer"
        )
    _check_ids(choice.token_ids, where=f"{where} has the")
    for value in choice.logprobs:
        if not _LEAST_LOGPROB <= value <= _LOGPROB_SLACK:  # false for NaN too
            raise TokenMismatchError(
                f"{where} has a log-probability of {value}: the backend must state that of the "
                f"sampled token, at most 0 and at least {_LEAST_LOGPROB:g}"
            )


def _check_ids(ids: Ints, *, where: str) -> None:
    least = min(ids)
    if least >= 0:
        return
    raise TokenMismatchError(
        f"{where} token id {least}: no vocabulary has it, so the backend or a proxy before it "
        f"altered the ids"
    )


def _check_distribution(call: ModelCall, *, where: str) -> None:
    temperature = call.sampling.temperature
    if temperature <= 0:
        raise CaptureError(
            f"{where} was sampled at temperature {temperature}, so every attempt is alike and "
            f"nothing can be learned: set rollout.temperature above 0"
        )
    if call.logprobs_mode == "raw" and temperature != 1.0:
        raise CaptureError(
            f"{where} was sampled at temperature {temperature} but its log-probabilities are "
            f"those before temperature: let the backend state processed ones, or set "
            f"rollout.temperature to 1"
        )
