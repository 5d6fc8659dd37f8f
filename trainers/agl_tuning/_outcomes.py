"""The outcomes of prompt rollouts: their scores, and records without what optimisers do not read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from agl_core.interfaces import Adapter, AttemptRecord, PromptOutcome
from agl_core.training import outcomes
from agl_core.types import Attempt, AttemptStatus, Failure, FailureKind, Losses, Rollout, Span

_FAILED = "prompts_rollouts_failed"
"""Beginning of the causes that count failed rollouts by kind."""


class Outcomes:
    """Makes the outcomes of a batch of rollouts, which share equal messages and tools."""

    def __init__(self, adapter: Adapter, losses: Losses, *, penalty: float) -> None:
        """Create an empty batch.

        Args:
            adapter: The run's adapter, which sums the rewards.
            losses: Gets the losses of the attempts.
            penalty: Score of a failed attempt.
        """
        self._adapter = adapter
        self._losses = losses
        self._penalty = penalty
        self._shared: dict[bytes, dict[str, Any]] = {}

    def of(self, record: AttemptRecord) -> PromptOutcome:
        """Score an attempt as an evaluation does: no call needs tokens."""
        rollout = msgspec.structs.replace(record.rollout, mode="val")
        [scored] = outcomes([replace(record, rollout=rollout)], self._adapter)
        self._losses.merge(Losses(counts=dict(scored.lost)))
        failure = scored.failure
        if failure is None and not math.isfinite(scored.score):
            failure = FailureKind.REWARD
        if failure is not None:
            self._losses.add(f"{_FAILED}_{failure.value}")
        return PromptOutcome(
            record=self.slim(record),
            score=scored.score if failure is None else self._penalty,
            failure=failure,
        )

    def slim(self, record: AttemptRecord) -> AttemptRecord:
        """Return an attempt's calls and rewards, without tokens and superseded tries."""
        # The attempts before the last one, and the settings of the run, concern the store alone.
        rollout = msgspec.structs.replace(record.rollout, attempts=(), metadata={})
        spans = [self._slim(span) for span in record.spans if _is_read(span)]
        return AttemptRecord(rollout=rollout, attempt=record.attempt, spans=spans)

    def _slim(self, span: Span) -> Span:
        call = span.call
        if call is None:
            return span
        choices = [
            msgspec.structs.replace(choice, token_ids=[], logprobs=[]) for choice in call.choices
        ]
        slim = msgspec.structs.replace(
            call,
            prompt_token_ids=[],
            choices=choices,
            messages=self._share(call.messages),
            tools=self._share(call.tools),
        )
        return msgspec.structs.replace(span, call=slim)

    def _share(self, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return equal objects; each is kept once: a conversation repeats its messages in each call."""
        return [self._shared.setdefault(_digest(each), each) for each in objects]


def cancelled(rollout: Rollout) -> AttemptRecord:
    """Return the record of a rollout that was cancelled before it had an attempt."""
    failure = Failure(kind=FailureKind.CANCELLED, message="it was cancelled before it ran")
    attempt = Attempt(
        id=f"{rollout.id}-none",
        rollout_id=rollout.id,
        fence=0,
        worker="",
        status=AttemptStatus.CANCELLED,
        failure=failure,
        sealed=True,
    )
    return AttemptRecord(rollout=rollout, attempt=attempt, spans=[])


def _is_read(span: Span) -> bool:
    if span.call is not None:
        return not span.call.superseded
    return span.reward is not None or span.call_id is not None


def _digest(value: Mapping[str, Any]) -> bytes:
    return blake2b(msgspec.json.encode(value), digest_size=16).digest()
