"""What the recorders say of one attempt, and checks that it is exactly true."""

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
"""Rounding may lift the log-probability of a sure token just above zero."""
_LEAST_LOGPROB = -104.0
"""Below it the probability is 0 in 32-bit floats, so no sampler draws the token; servers write such
numbers (-9999.0) in the place of minus infinity."""


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
        framework = framework_of(span, found.by_id)
        where = describe(span.call_id, agent=span.agent, framework=framework)
        raise CaptureError(
            f"{where} is claimed by two spans, {other.name!r} and {span.name!r}: attach one "
            f"integration per client, so that each call is recorded once"
        )


def framework_of(span: Span | None, spans: Mapping[str, Span]) -> str:
    """The framework that recorded a span: its own attribute or its nearest ancestor's."""
    visited: set[str] = set()
    while span is not None and span.id not in visited:
        name = span.attributes.get(semconv.AGL_FRAMEWORK)
        if name:
            return str(name)
        visited.add(span.id)
        span = spans.get(span.parent_id or "")
    return ""


def describe(call_id: str | None, *, agent: str | None, framework: str) -> str:
    """Name a call in a message by all that is known of it."""
    call = f"Call {call_id!r}" if call_id else "A call"
    speaker = f" of agent {agent!r}" if agent else ""
    recorder = f" (recorded by {framework})" if framework else ""
    return f"{call}{speaker}{recorder}"


def raise_recorded(span: Span, *, framework: str) -> NoReturn:
    """Turn a capture error that a recorder left behind into an exception.

    Raises:
        CaptureError: always.
    """
    reason = span.error or str(span.attributes.get(semconv.AGL_MESSAGE) or "no reason given")
    where = describe(span.call_id, agent=span.agent, framework=framework)
    raise CaptureError(f"{where} was not captured: {reason}")


def check_tokens(call: ModelCall, *, where: str) -> None:
    """Check that a call can be trained on exactly as it was sampled.

    Raises:
        MissingTokensError: ids or log-probabilities are missing; an `EmptyAnswerError` where the
            model ended its answer before the first token.
        TokenMismatchError: an id is none of a vocabulary, or ids, log-probabilities and choices do not add up.
        CaptureError: the log-probabilities are not those of the sampling distribution.
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
