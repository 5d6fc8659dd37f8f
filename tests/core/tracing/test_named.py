from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from agl_core.tracing import Recorder, agent_scope, current_scope, enter


@pytest.fixture
def recorder(make_context):
    context = make_context()
    with enter(context):
        yield context.recorder


def ended(recorder: Recorder) -> list[bool]:
    return [bool(span.end_ns) for span in recorder.snapshot()]


async def test_one_scope_serves_overlapping_tasks(recorder):
    judge = agent_scope("judge")
    entered, left = asyncio.Event(), asyncio.Event()

    async def first():
        with judge as scope:
            await entered.wait()
            assert current_scope() is scope
        assert current_scope() is None
        left.set()

    async def second():
        with judge as scope:
            entered.set()
            await left.wait()
            assert ended(recorder) == [True, False]
            assert current_scope() is scope

    await asyncio.gather(first(), second())
    assert ended(recorder) == [True, True]


def test_one_scope_serves_overlapping_threads(recorder):
    judge = agent_scope("judge")
    entered, left = threading.Event(), threading.Event()

    def second():
        with judge as scope:
            entered.set()
            assert left.wait(30)
            assert ended(recorder) == [True, False]
            assert current_scope() is scope

    with ThreadPoolExecutor(1) as pool:
        outer = copy_context()
        with judge as scope:
            other = pool.submit(outer.run, second)
            assert entered.wait(30)
            assert current_scope() is scope
        assert current_scope() is None
        left.set()
        other.result()
    assert ended(recorder) == [True, True]


async def test_a_task_leaves_its_own_block_and_not_the_one_it_was_started_in(recorder):
    judge = agent_scope("judge")

    async def inner():
        with judge:
            pass

    with judge as scope:
        await asyncio.create_task(inner())
        assert ended(recorder) == [False, True]
        assert current_scope() is scope
    assert ended(recorder) == [True, True]


def test_a_block_left_in_another_context_ends(recorder):
    judge = agent_scope("judge")

    def steps():
        with judge:
            yield

    elsewhere = copy_context()
    begun = steps()
    next(begun)
    elsewhere.run(begun.close)
    assert ended(recorder) == [True]
    assert current_scope() is None
    with judge:
        assert ended(recorder) == [True, False]
    assert ended(recorder) == [True, True]
