"""A gateway that is away or was restarted: attempts end as the engine's failures, runners go on."""

from __future__ import annotations

import asyncio

import pytest

from agl_core.errors import EngineError, StoreError
from agl_core.runner import Runner
from agl_core.runner._attempt import Ending, reconsidered
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Failure,
    FailureKind,
    RolloutQuery,
    Span,
    SpanKind,
)
from tests.core.passing import Signal


def agent(task):
    if task.input == 1:
        raise ValueError("swallowed nothing")
    return "done"


@pytest.fixture
def refusing(gateway, monkeypatch):
    """Make a method of the gateway fail as a remote one does."""

    def refusing(method, times):
        real = getattr(gateway, method)
        left = [times]

        async def refused(*arguments):
            if left[0] > 0:
                left[0] -= 1
                raise EngineError("it was restarted")
            return await real(*arguments)

        monkeypatch.setattr(gateway, method, refused)

    return refusing


@pytest.mark.parametrize("method", ["open", "seal"])
async def test_an_attempt_whose_calls_may_be_missing_is_tried_again(
    store, enqueue, run_all, refusing, method
):
    refusing(method, 2)
    await run_all(await enqueue(2, max_attempts=3), agent)
    rollouts = await store.rollouts(RolloutQuery())
    failures = [each.failure for rollout in rollouts for each in rollout.attempts if each.failure]
    refused = [failure for failure in failures if failure.kind is FailureKind.ENGINE]
    assert len(refused) == 2
    assert all("it was restarted" in failure.message for failure in refused)
    succeeded, failed = await store.rollouts(RolloutQuery())
    assert succeeded.attempts[-1].output == "done"
    assert failed.attempts[-1].failure.kind is FailureKind.AGENT


async def test_what_failed_by_itself_is_not_trusted_either(store, enqueue, run_all, refusing):
    refusing("seal", 2)
    await run_all(await enqueue(2), agent)
    succeeded, failed = (r.attempts[0] for r in await store.rollouts(RolloutQuery()))
    assert succeeded.status is failed.status is AttemptStatus.FAILED
    assert succeeded.failure.kind is failed.failure.kind is FailureKind.ENGINE
    assert "ValueError" in failed.failure.message or "swallowed" in failed.failure.message


async def test_a_runner_that_stops_does_not_wait_for_a_gateway_that_is_away(
    store, enqueue, gateway, monkeypatch
):
    monkeypatch.setattr("agl_core.waits.SEAL_S", 0.01)
    started = Signal()

    async def endless(task):
        started.set()
        await asyncio.Event().wait()

    async def away(attempt_id):
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway, "seal", away)
    await enqueue(1)
    running = asyncio.create_task(Runner(store, gateway, endless, None).run(asyncio.Event()))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (rollout,) = await store.rollouts(RolloutQuery())
    assert rollout.attempts[0].failure.kind is FailureKind.CANCELLED


async def test_records_that_a_store_cannot_give_are_no_fault_of_the_reward(
    store, enqueue, gateway, monkeypatch
):
    """G14: the runner fails as where an outcome cannot be stored; the attempt is given up."""

    async def flush(attempt_id):
        raise StoreError("disk full")

    async def scored(record, output):
        return []

    monkeypatch.setattr(gateway, "flush", flush)
    await enqueue(1)
    with pytest.raises(StoreError, match="disk full"):
        await Runner(store, gateway, agent, scored).run(asyncio.Event())
    (rollout,) = await store.rollouts(RolloutQuery())
    assert rollout.attempts[0].failure.kind is FailureKind.CANCELLED


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.AGENT])
async def test_what_is_known_to_be_at_fault_is_not_looked_up(kind):
    class Away:
        async def spans(self, rollout_ids, *, attempt_id=None):
            raise StoreError("the store is away")

    attempt = Attempt(id="at", rollout_id="ro", fence=1, worker="w")
    failed = Span(
        id="s", rollout_id="ro", attempt_id="at", kind=SpanKind.LLM, name="", status="error"
    )
    ending = Ending(status=AttemptStatus.FAILED, failure=Failure(kind=kind, message="down"))
    assert await reconsidered(Away(), attempt, ending, [failed]) is ending
    with pytest.raises(StoreError):
        await reconsidered(Away(), attempt, Ending(status=AttemptStatus.SUCCEEDED), [failed])
