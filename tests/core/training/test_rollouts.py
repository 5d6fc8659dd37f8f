"""Rollouts of a step: what is collected, and what is counted beside it."""

from __future__ import annotations

import asyncio

import pytest

from agl_core import semconv
from agl_core.config.loader import resolve
from agl_core.store._memory import MemoryStore
from agl_core.training.rollouts import RolloutPlan, RolloutSource
from agl_core.types import AttemptStatus, Failure, FailureKind, Span, SpanKind, Task

PLAN = RolloutPlan(
    tasks=[Task(id="t", input=0)], samples=2, mode="train", step=0, resources_version=0
)


@pytest.fixture
async def store():
    memory = MemoryStore()
    await memory.open()
    yield memory
    await memory.close()


def losing(claim, number, **lost):
    return Span(
        id=f"span-{claim.attempt.id}-{number}",
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        kind=SpanKind.MESSAGE,
        name=semconv.AGL_LOST,
        attributes={semconv.AGL_LOST: lost},
    )


async def test_retries_and_what_runners_lost_are_counted(store):
    source = RolloutSource(store, resolve({"name": "r", "rollout": {"max_attempts": 3}}))
    running = asyncio.create_task(source.run(PLAN))
    (first,) = await store.claim("a")
    await store.finish(
        first.attempt.id,
        status=AttemptStatus.FAILED,
        failure=Failure(kind=FailureKind.ENGINE, message="away"),
        spans=[losing(first, 0, late_span=2)],
    )
    (second,) = await store.claim("a")
    await store.finish(second.attempt.id, status=AttemptStatus.LOST)
    for claim in await store.claim("b", limit=2):
        await store.finish(
            claim.attempt.id,
            status=AttemptStatus.SUCCEEDED,
            spans=[losing(claim, 0, late_span=1, dropped_span=4)],
        )
    await running
    assert source.losses.counts == {
        "attempts_retried_engine": 1,
        "attempts_retried_lost": 1,
        "late_span": 4,
        "dropped_span": 8,
    }


async def test_a_rollout_that_somebody_cancelled_before_it_ran_is_counted(store):
    source = RolloutSource(store, resolve({"name": "r"}))
    running = asyncio.create_task(source.run(PLAN))
    (claim,) = await store.claim("a")
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    await source.abandon("r")
    assert len(await running) == 1
    assert source.losses.counts == {"rollouts_without_attempt": 1}


async def test_rollouts_of_a_run_are_counted_from_any_one_on(store):
    mine, other = (RolloutSource(store, resolve({"name": name})) for name in ("r", "other"))
    ids = []
    for source in (mine, other, mine):
        running = asyncio.create_task(source.run(PLAN))
        ids.append([claim.rollout.id for claim in await store.claim("a", limit=2)])
        await source.abandon("r" if source is mine else "other")
        await running
    assert await mine.count_since("", "r") == 4
    assert await mine.count_since(ids[0][-1], "r") == 2
    assert await mine.count_since(mine.newest, "r") == 0
    assert mine.newest == ids[2][-1]


def test_settings_that_attempts_need_travel_with_each_rollout(store):
    plain = RolloutSource(store, resolve({"name": "r"})).make(PLAN)[0]
    assert (plain.thinking_tags, plain.prompt_budget("writer")) == (("think", "thinking"), None)
    told = {"capture": {"thinking_tags": ["r"]}, "prompt_budgets": {"wr*": 300}}
    (first, _) = RolloutSource(store, resolve({"name": "r", **told})).make(PLAN)
    assert (first.thinking_tags, first.prompt_budget("writer")) == (("r",), 300)
