"""A runner of a run that lives in another process: what it gives up, loses, and how it wears."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import pytest

from agl_core import emit_reward, semconv
from agl_core.errors import StaleAttemptError
from agl_core.plugins.requirements import own_version
from agl_core.runner import Runner, RunnerOptions
from agl_core.types import AttemptStatus, FailureKind, RolloutQuery, RolloutStatus
from tests.core.passing import Signal


def carried(spans):
    return [
        span.attributes[semconv.AGL_LOST] for span in spans if semconv.AGL_LOST in span.attributes
    ]


async def test_the_worker_of_an_attempt_says_where_it_runs_and_in_which_version(enqueue, run_all):
    _, (attempt,), _ = await run_all(await enqueue(), lambda task: None)
    assert attempt.worker == f"{socket.gethostname()}-{os.getpid()}/{own_version()}"


@pytest.mark.parametrize("outside", [False, True])
async def test_a_stopped_runner_leaves_its_attempts_to_others(store, enqueue, gateway, outside):
    """Where others can be: a runner in the trainer's own process is the only one."""
    started = Signal()

    async def agent(task):
        started.set()
        await asyncio.Event().wait()

    (rollout_id,) = await enqueue(max_attempts=2)
    runner = Runner(store, gateway, agent, None, RunnerOptions(outside=outside))
    task = asyncio.create_task(runner.run(asyncio.Event()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (rollout,) = await store.rollouts(RolloutQuery(ids=(rollout_id,)))
    if outside:
        assert rollout.status is RolloutStatus.QUEUED
        assert rollout.attempt.status is AttemptStatus.LOST
        assert rollout.attempt.failure.kind is FailureKind.LOST
    else:
        assert rollout.status is RolloutStatus.CANCELLED


async def test_losses_travel_with_the_attempts_that_end_after_them_each_once(
    store, enqueue, serving
):
    release = threading.Event()
    late = threading.Event()

    def agent(task):
        if task.input == 0:
            release.wait()
            emit_reward(1.0)
            late.set()
        elif task.input == 2:
            release.set()
            late.wait()
        return task.input

    ids = [*await enqueue(1, timeout_s=0.2)]
    options = {"concurrency": 1, "grace_s": 0.01, "outside": True}
    async with serving(agent, **options) as runner:
        await store.wait(ids, timeout_s=100)
        ids = await enqueue_more(store, ids[0], 3)
        await store.wait(ids, timeout_s=100)
    spans = [carried(await store.spans([rollout_id])) for rollout_id in ids]
    assert spans == [[{"abandoned_thread": 1}], [], [{"late_reward": 1}], []]
    assert runner.losses.counts == {"abandoned_thread": 1, "late_reward": 1}


async def test_what_did_not_arrive_travels_with_the_next(store, enqueue, serving, monkeypatch):
    finish = store.finish
    refused = []

    async def refuse_first(attempt_id, **given):
        if not refused:
            refused.append(attempt_id)
            await finish(attempt_id, status=AttemptStatus.CANCELLED)
            raise StaleAttemptError("too late")
        return await finish(attempt_id, **given)

    monkeypatch.setattr(store, "finish", refuse_first)
    ids = await enqueue(2)
    async with serving(lambda task: "x" * 2_000_000, concurrency=1, outside=True):
        await store.wait(ids, timeout_s=100)
    assert carried(await store.spans(ids)) == [{"truncated_value": 2, "late_attempt": 1}]


async def test_a_runner_inside_the_trainers_process_carries_nothing(enqueue, run_all):
    runner, _, spans = await run_all(await enqueue(), lambda task: "x" * 2_000_000)
    assert runner.losses.counts == {"truncated_value": 1}
    assert carried(spans) == []


async def test_a_worn_runner_claims_nothing_more_and_ends(store, enqueue, gateway):
    release = threading.Event()
    ids = await enqueue(4, timeout_s=0.05)
    options = RunnerOptions(concurrency=1, grace_s=0.01, outside=True, max_abandoned=1)
    runner = Runner(store, gateway, lambda task: release.wait(), None, options)
    await runner.run(asyncio.Event())
    assert runner.worn
    left = await store.rollouts(RolloutQuery(statuses=(RolloutStatus.QUEUED,)))
    assert [rollout.id for rollout in left] == ids[2:]
    release.set()


async def enqueue_more(store, known, count):
    (first,) = await store.rollouts(RolloutQuery(ids=(known,)))
    from msgspec.structs import replace

    from agl_core.types import Limits, Task

    fresh = [
        replace(
            first,
            id=f"rollout_{number:03}",
            task=Task(id=str(number), input=number),
            limits=Limits(timeout_s=600.0),
            status=RolloutStatus.QUEUED,
            attempts=(),
        )
        for number in range(1, 1 + count)
    ]
    return [known, *(rollout.id for rollout in await store.enqueue(fresh))]
