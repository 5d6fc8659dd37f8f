"""The adapter for attempts whose rollout function returns its own triplets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from agl_compat._triplets import ATTRIBUTE
from agl_core.adapters import TrajectoryAdapter
from agl_core.errors import MissingTokensError
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import ModelCall, Policy, Span

_Ids = tuple[bytes, bytes]


class TripletAdapter:
    """The adapter ``trajectory``, except that triplets are all calls of their attempt.

    If an attempt has triplets, its other calls are context and not trained. A triplet with the same
    ids as one of these calls has that call's log-probabilities, which are those of the sampling.
    """

    def __init__(
        self,
        agents: Sequence[str],
        *,
        policies: Sequence[Policy],
        channel_weights: Mapping[str, float] | None = None,
    ) -> None:
        """Build an adapter; see `agl_core.adapters.TrajectoryAdapter`."""
        self._adapter = TrajectoryAdapter(
            agents, policies=policies, channel_weights=channel_weights
        )

    def adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        """See `agl_core.interfaces.Adapter.adapt`."""
        if any(ATTRIBUTE in span.attributes for span in record.spans):
            record = replace(record, spans=_of_triplets(record.spans))
        return self._adapter.adapt(record)

    def check(self, seen: Collection[str]) -> None:
        """See `agl_core.interfaces.Adapter.check`."""
        self._adapter.check(seen)


def _of_triplets(spans: Sequence[Span]) -> list[Span]:
    sampled = {
        _ids(span.call): span.call
        for span in spans
        if span.call is not None and ATTRIBUTE not in span.attributes and span.call.complete
    }
    return [_taken(span, sampled) if span.call is not None else span for span in spans]


def _taken(span: Span, sampled: Mapping[_Ids, ModelCall]) -> Span:
    call = span.call
    assert call is not None
    source = span.attributes.get(ATTRIBUTE)
    if source is None:
        return msgspec.structs.replace(span, call=msgspec.structs.replace(call, trainable=False))
    same = sampled.get(_ids(call))
    if source != "given" and same is not None and same.choices[0].logprobs:
        call = msgspec.structs.replace(
            call,
            choices=same.choices,
            sampling=same.sampling,
            logprobs_mode=same.logprobs_mode,
            policy_version=same.policy_version,
        )
    elif source == "none" and call.trainable:
        raise MissingTokensError(
            f"Triplet {call.id!r} of agent {call.agent!r} has no log-probabilities, and the engine "
            f"of policy {call.policy!r} does not compute them: return them in the triplet's "
            f"metadata['logprobs'], or train with an engine that scores given tokens, as torch does"
        )
    return msgspec.structs.replace(span, call=call)


def _ids(call: ModelCall) -> _Ids:
    response = call.choices[0].token_ids.tobytes() if len(call.choices) == 1 else b""
    return call.prompt_token_ids.tobytes(), response
