"""Rewards from agents in any language: one JSON object for the attempt that it names."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_core.clocks import new_id, wall_ns
from agl_core.errors import StoreError
from agl_core.interfaces import Access, Identity, Problem, RouteAnswer, RouteRequest, Store
from agl_core.tracing import reason
from agl_core.types import Losses, Reward, RewardTarget, Span, SpanKind, finite_number

_LARGEST: Final = 64 * 1024
"""Most bytes of a request."""
_ENDED: Final = 410
_FIX: Final = "give one finite number, such as 0.0, 0.5 or true"


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    value: Any
    channel: str = "main"
    why: str = ""
    call: str | None = None
    choice: int | None = None
    agent: str | None = None
    agent_run: str | None = None
    id: str | None = None


class RewardIngest:
    """A route that takes rewards of running attempts, and late ones if the store accepts them."""

    access: Access = "agents"

    def __init__(self, store: Store, losses: Losses) -> None:
        self._store = store
        self._losses = losses

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer one request.

        Raises:
            Problem: the body is not a reward, its attempt does not run, or the store is
                unavailable.
        """
        identity = request.identity()
        body = await request.body(largest=_LARGEST, advice="shorten its reason")
        given = _read(body)
        given.why, cut = reason(given.why)
        span = _span(identity, given)
        try:
            request.admit(identity.rollout_id, identity.attempt_id)
        except Problem as problem:
            if problem.status != _ENDED:
                self._losses.add("late_reward")
                raise
        stored = await self._keep(span)
        self._losses.add("truncated_value", stored if cut else 0)
        return RouteAnswer(body=msgspec.json.encode({"id": span.id}))

    async def _keep(self, span: Span) -> int:
        """Add the span to the store, which accepts late spans within the run's grace period.

        Returns:
            1; or 0 for a span that was stored before.
        """
        try:
            ingest = await self._store.add_spans([span])
        except StoreError as error:
            message = f"The store did not take the reward: {error}"
            raise Problem(503, "store_unavailable", message, retry=True) from error
        if ingest.late:
            self._losses.add("late_reward")
            message = f"Attempt {span.attempt_id!r} has ended: no reward is taken for it any more"
            raise Problem(_ENDED, "attempt_sealed", message)
        return ingest.accepted


def _read(body: bytes) -> _Given:
    try:
        return msgspec.json.decode(body, type=_Given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f'Request body is no reward ({error}): send {{"value": 1.0}}'
        raise Problem(400, "invalid_body", message) from error


def _span(identity: Identity, given: _Given) -> Span:
    number = finite_number(given.value)
    if number is None:
        raise _refuse("value", given.value, _FIX)
    for name in ("channel", "call", "agent", "agent_run", "id"):
        if getattr(given, name) == "":
            raise _refuse(name, "", "leave it out, or name one")
    target = RewardTarget(
        call=given.call, choice=given.choice, agent=given.agent, agent_run=given.agent_run
    )
    if len(target.units) > 1:
        fix = "name one of call, agent and agent_run, or send one reward for each"
        raise _refuse(target.units[0], target.units, fix)
    if target.ambiguous:
        raise _refuse("choice", given.choice, "name the call too")
    if given.choice is not None and given.choice < 0:
        raise _refuse("choice", given.choice, "give the index of a choice, from 0")
    now = wall_ns()
    return Span(
        id=given.id or new_id("span"),
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
        kind=SpanKind.REWARD,
        name=given.channel,
        agent=identity.agent or None,
        agent_run_id=identity.agent_run_id or None,
        start_ns=now,
        end_ns=now,
        reward=Reward(value=number, channel=given.channel, target=target, why=given.why),
    )


def _refuse(field: str, value: Any, fix: str) -> Problem:
    message = f"{field}: {value!r:.200} says nothing about a reward: {fix}"
    return Problem(400, "invalid_reward", message, param=field)
