"""Triplets that a rollout function returns: prompt ids, response ids and reward of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, cast

import msgspec

from agl_compat._client import begin_call, post
from agl_core import semconv
from agl_core.clocks import new_id
from agl_core.errors import CaptureError, RewardError
from agl_core.tracing import active, agent_scope, current_scope, emit_reward
from agl_core.types import finite_number

ATTRIBUTE: Final = "agl_compat.triplet"
"""Attribute of the recorded call of a triplet; its value says where the log-probabilities are from:
``given``, ``computed`` or ``none``."""
PATH: Final = "/triplets"


@dataclass(slots=True)
class Triplet:
    """One call of a rollout function's own.

    `prompt` and `response` are token ids, or mappings with ``token_ids`` (and ``logprobs``).
    ``metadata`` may name the ``agent``, the sampling ``temperature`` (1.0 without it) and
    ``logprobs``, one per response id, after temperature.
    """

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class GivenTriplet(msgspec.Struct, kw_only=True):
    """A checked triplet, as the gateway's route takes it."""

    id: str
    """Id of the call that it becomes."""
    prompt: list[int]
    response: list[int]
    logprobs: list[float] | None = None
    temperature: float = 1.0
    version: int | None = None
    """Version of the weights that sampled it; None: the one that serves now."""


def read_triplets(value: Any) -> list[tuple[str, float | None, GivenTriplet]] | None:
    """Return agent, reward and ids of each returned triplet; None if `value` is something else.

    Raises:
        CaptureError: a triplet is not exact; the message names it.
        RewardError: its reward is not a finite number.
    """
    rows = value if _is_list(value) else _get(value, "triplets")
    if not _is_list(rows) or not rows or not all(_is_triplet(row) for row in rows):
        return None
    return [_read(row, f"Triplet {number} of {len(rows)}") for number, row in enumerate(rows, 1)]


def record_triplets(triplets: Sequence[tuple[str, float | None, GivenTriplet]]) -> None:
    """Record triplets as the calls of this attempt, each with its reward.

    Outside a rollout nothing is recorded.

    Raises:
        CaptureError: the gateway refuses one: an id is not in the vocabulary, or its
            log-probabilities do not fit.
        EngineError: the gateway does not answer.
    """
    context = active()
    if context is None:
        return
    scope = current_scope()
    here = (scope.agent if scope is not None else None) or ""
    for agent, group in groupby(triplets, key=lambda row: row[0] or here):
        members = [*group]
        with agent_scope(agent or "agent") as inside:
            spans = [
                begin_call(context, inside, given.id, {semconv.GEN_AI_OPERATION_NAME: "chat"})
                for _, _, given in members
            ]
            body = {"triplets": [msgspec.to_builtins(given) for _, _, given in members]}
            post(context, PATH, body, scope=inside)
            for span in spans:
                context.recorder.end(span)
        for _, reward, given in members:
            if reward is not None:
                emit_reward(reward, call=given.id)


def _read(row: Any, where: str) -> tuple[str, float | None, GivenTriplet]:
    metadata = cast("Mapping[str, Any]", _get(row, "metadata") or {})
    prompt, response = _get(row, "prompt"), _get(row, "response")
    logprobs = _first(_get(row, "logprobs"), _get(response, "logprobs"), metadata.get("logprobs"))
    ids = _ids(_first(_get(response, "token_ids"), response, _get(row, "response_ids")), where)
    given = GivenTriplet(
        id=new_id("call"),
        prompt=_ids(_first(_get(prompt, "token_ids"), prompt, _get(row, "prompt_ids")), where),
        response=ids,
        logprobs=None if logprobs is None else _logprobs(logprobs, len(ids), where),
        temperature=_temperature(metadata.get("temperature", 1.0), where),
        version=metadata.get("policy_version"),
    )
    agent = _first(metadata.get("agent"), metadata.get("agent_name"), "")
    return str(agent), _reward(_get(row, "reward"), where), given


def _ids(value: Any, where: str) -> list[int]:
    ids: list[Any] = [*value] if _is_list(value) or hasattr(value, "tolist") else []
    whole = [int(each) for each in ids if _is_id(each)]
    if not whole or len(whole) != len(ids):
        raise CaptureError(
            f"{where} has the token ids {value!r:.120}: give the ids of prompt and response, each "
            f"a list of at least one whole number, not their text"
        )
    return whole


def _is_id(value: Any) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__") and int(value) >= 0


def _logprobs(value: Any, expected: int, where: str) -> list[float]:
    rows: list[Any] = [*value] if _is_list(value) or hasattr(value, "tolist") else []
    numbers = [
        finite_number(row if not isinstance(row, Mapping) else row.get("logprob")) for row in rows
    ]  # pyright: ignore[reportUnknownMemberType]
    found = [number for number in numbers if number is not None]
    if len(found) != expected or len(found) != len(rows):
        raise CaptureError(
            f"{where} has {expected} response ids but the log-probabilities {value!r:.120}: give one "
            f"finite number per response id, or none, so that the engine computes them"
        )
    return found


def _temperature(value: Any, where: str) -> float:
    number = finite_number(value)
    if number is None or number <= 0:
        raise CaptureError(f"{where} has the temperature {value!r:.80}: give a number above 0")
    return number


def _reward(value: Any, where: str) -> float | None:
    if value is None:
        return None
    number = finite_number(value)
    if number is None:
        raise RewardError(f"{where} has the reward {value!r:.80}: give one finite number or None")
    return number


def _is_triplet(row: Any) -> bool:
    return _get(row, "prompt", "prompt_ids") is not None and (
        _get(row, "response", "response_ids") is not None
    )


def _get(owner: Any, *names: str) -> Any:
    for name in names:
        value = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if value is not None:
            return value  # pyright: ignore[reportUnknownVariableType]
    return None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
