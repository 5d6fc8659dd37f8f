"""Checks that what two recorders say of one call is exactly true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from agl_core import semconv
from agl_core.errors import CaptureError, EmptyAnswerError, MissingTokensError, TokenMismatchError
from agl_core.types import Choice, Ints, ModelCall, Span

_LOGPROB_SLACK = 1e-3
"""Rounding may lift the log-probability of a sure token just above zero."""
_LEAST_LOGPROB = -104.0
"""Below it the probability is 0 in 32-bit floats, so no sampler draws the token; servers write such
numbers (-9999.0) in the place of minus infinity."""


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
