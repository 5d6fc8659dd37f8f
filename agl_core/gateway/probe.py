"""Find a backend's capabilities with a few short requests."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agl_core.errors import EngineError, MissingTokensError
from agl_core.gateway._capture import ReceivedAnswer
from agl_core.gateway._chat_answer import Payload
from agl_core.gateway._routing import Route
from agl_core.gateway._stream import DONE, EventParser
from agl_core.interfaces import Backend, Capabilities
from agl_core.text import decoded, replaced_json
from agl_core.types import LogprobsMode

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 300.0
"""High, because a server may compile kernels for its first answer."""
_COOL, _WARM = 0.5, 1.0
_ALTERNATIVES: Final = 5
_MASKED: Final = -1000.0
"""Log-probabilities below it mean a probability of zero, which servers write in different ways."""
_UNSUPPORTED: Final = (400, 422)


async def probe(route: Route) -> Capabilities:
    """Return the capabilities of a policy's backend.

    Log-probabilities are ``raw`` (before temperature) or ``processed`` (after it). The candidates
    for the first token at two temperatures show which: the differences between ``raw`` values do
    not change, those between ``processed`` values scale with 1/temperature. If the candidates do
    not show it (no alternatives, or all equally likely), the result is ``raw``, with a warning:
    ``raw`` values are used as the sampling distribution only at temperature 1, where both modes are
    equal.

    Raises:
        EngineError: the backend does not answer.
        MissingTokensError: the policy is trainable and token ids or log-probabilities are missing.
    """
    warm, warm_tops = await _ask(route, _WARM, stream=False)
    _, cool_tops = await _ask(route, _COOL, stream=False)
    streamed, _ = await _ask(route, _COOL, stream=True)
    token_ids = warm.has_tokens and not warm.mismatch()
    stream_token_ids = streamed.has_tokens and not streamed.mismatch()
    has_logprobs = any(choice.logprobs for choice in warm.choices)
    if route.policy.trainable:
        _require_tokens(route, warm, token_ids=token_ids, has_logprobs=has_logprobs)
        if not stream_token_ids:
            _log.warning(
                "Backend of policy %r returns no token ids in streams: "
                "agents that stream cannot be trained with it",
                route.policy.name,
            )
    mode = logprobs_mode(cool_tops, warm_tops) if has_logprobs else "none"
    if mode is None:
        _log.warning(
            "Backend of policy %r does not show whether its log-probabilities follow the "
            "temperature; they count as raw. Sample at temperature 1 to make it irrelevant",
            route.policy.name,
        )
    return Capabilities(
        token_ids=token_ids, stream_token_ids=stream_token_ids, logprobs=mode or "raw"
    )


def logprobs_mode(cool: Mapping[str, float], warm: Mapping[str, float]) -> LogprobsMode | None:
    """Return the mode, from one token's candidates at temperatures 0.5 and 1; None if unknown.

    With candidates a, b and ``d(T) = logp_T(a) - logp_T(b)``: raw means d(0.5) = d(1), processed
    means d(0.5) = 2 d(1). The pair with the largest ``|d(1)|`` decides.
    """
    common = sorted(cool.keys() & warm.keys(), key=lambda token: warm[token])
    if len(common) < 2:  # noqa: PLR2004  a difference needs two
        return None
    low, high = common[0], common[-1]
    spread = warm[high] - warm[low]
    if spread < 0.05:  # noqa: PLR2004  below the noise of half precision
        return None
    ratio = (cool[high] - cool[low]) / spread
    return "processed" if ratio > math.sqrt(_WARM / _COOL) else "raw"


def _require_tokens(
    route: Route, answer: ReceivedAnswer, *, token_ids: bool, has_logprobs: bool
) -> None:
    if token_ids and has_logprobs:
        return
    what = answer.mismatch() or "it returned none"
    raise MissingTokensError(
        f"Policy {route.policy.name!r} is trainable, but its backend "
        f"{type(route.backend).__name__} ({route.upstream_model!r}) does not give exact token ids "
        f"and log-probabilities: {what}. Use a server that answers return_token_ids and logprobs "
        f"with the ids of prompt and answer, or an engine that trains; text is never re-tokenised "
        f"instead"
    )


async def _ask(
    route: Route, temperature: float, *, stream: bool
) -> tuple[ReceivedAnswer, dict[str, float]]:
    """Return a short answer and the candidates of its first token."""
    body: dict[str, Any] = {
        "model": route.upstream_model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "temperature": temperature,
        "top_p": 1.0,
        "seed": 1,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    tokens = {"logprobs": True, "return_token_ids": True}
    more = {"top_logprobs": _ALTERNATIVES}
    for extra in (tokens | more, tokens, {}):
        status, data = await _post(route.backend, body | extra)
        if status not in _UNSUPPORTED:
            break
    if status >= _UNSUPPORTED[0]:
        text = decoded(data[:500])
        raise EngineError(
            f"Backend of policy {route.policy.name!r} answered a probe with HTTP {status}: {text}"
        )
    return _read(_events(data) if stream else [data])


def _read(payloads: list[bytes]) -> tuple[ReceivedAnswer, dict[str, float]]:
    found = ReceivedAnswer(expected_choices=1)
    candidates: dict[str, float] = {}
    for data in payloads:
        try:
            payload = Payload(data)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"Backend answered a probe with no chat completion ({error}): {data[:200]!r}"
            ) from error
        if payload.faults:
            raise EngineError(
                f"Backend answered a probe with a malformed chat completion: {payload.faults[0]}"
            )
        found.add(payload)
        if found.error:
            raise EngineError(f"Backend answered a probe with an error: {found.error}")
        candidates = candidates or _candidates(msgspec.json.decode(replaced_json(data)))
    return found, candidates


def _candidates(payload: Mapping[str, Any]) -> dict[str, float]:
    choices: list[Any] = payload.get("choices") or []
    for choice in choices:
        logprobs: dict[str, Any] = choice.get("logprobs") or {}
        entries: list[Any] = logprobs.get("content") or []
        if entries:
            top: list[Any] = entries[0].get("top_logprobs") or []
            return {t["token"]: t["logprob"] for t in top if t["logprob"] > _MASKED}
    return {}


def _events(data: bytes) -> list[bytes]:
    parser = EventParser()
    events = [*parser.feed(data), *parser.finish()]
    return [event.data for event in events if event.data != DONE]


async def _post(backend: Backend, body: dict[str, Any]) -> tuple[int, bytes]:
    reply = await backend.chat(msgspec.json.encode(body), headers={}, timeout_s=_TIMEOUT_S)
    try:
        return reply.status, b"".join([chunk async for chunk in reply.body()])
    finally:
        await reply.close()
