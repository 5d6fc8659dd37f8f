"""Async agents that block their event loop: what goes on meanwhile, and what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading

import pytest

from agl_core.runner import Runner, RunnerOptions
from agl_core.runner import _agent_loop as agent_loop
from agl_core.runner import _limits as limits
from agl_core.runner._limits import LoopWatch, StartThrottle
from agl_core.tracing import active
from agl_core.types import AttemptStatus, FailureKind
from tests.core.passing import Signal


@pytest.fixture
def soon(monkeypatch):
    """A loop counts as blocked after a moment."""
    monkeypatch.setattr(agent_loop, "BLOCKED_S", 0.01)
    monkeypatch.setattr("agl_core.runner._limits._LOOK_S", 0.005)


async def test_heartbeats_go_on_while_an_async_agent_blocks(store, enqueue, run_all, monkeypatch):
    """D1: an ``async def`` that calls a sync client; eight attempts with a short lease."""
    beats, heartbeat = threading.Semaphore(0), store.heartbeat

    async def counted(ids):
        lost = await heartbeat(ids)
        beats.release()
        return lost

    async def agent(task):
        for _ in range(2):
            beats.acquire()  # waits in the way that a sync client does
        return task.input

    monkeypatch.setattr(store, "heartbeat", counted)
    _, attempts, _ = await run_all(await enqueue(8, lease_s=3.0), agent, heartbeat_s=0.01)
    assert [attempt.status for attempt in attempts] == [AttemptStatus.SUCCEEDED] * 8


@pytest.mark.usefixtures("soon")
async def test_what_blocks_the_loop_is_named_with_its_stack_and_the_fix(enqueue, serving, caplog):
    """D1: reported while it blocks, however long that is."""
    release = threading.Event()

    def sync_program():
        release.wait()

    async def run_agent(task):
        sync_program()

    class Heard(logging.Handler):
        def emit(self, record):
            if "'run_agent'" in record.getMessage():
                release.set()

    heard = Heard()
    logging.getLogger("agl_core.runner._limits").addHandler(heard)
    await enqueue(2)
    async with serving(run_agent) as runner:
        while not release.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    logging.getLogger("agl_core.runner._limits").removeHandler(heard)
    told = [each for each in caplog.records if "'run_agent'" in each.getMessage()]
    (record,) = told[:1]
    assert "by 'run_agent'" in record.getMessage()
    assert "Make 'run_agent' a plain def" in record.getMessage()
    assert "asyncio.to_thread(...)" in record.getMessage()
    assert "release.wait()" in record.getMessage()
    (stall,) = [each for each in runner.stalls if each.function == "run_agent"]
    assert (stall.function, stall.attempt_id is not None) == ("run_agent", True)
    assert __file__ in stall.place


class _LoopByHand(asyncio.SelectorEventLoop):
    """A loop whose time passes in its waits alone, each of which takes `late_s` too long."""

    def __init__(self, late_s, before_time_passes):
        super().__init__()
        self.now = 0.0
        select = self._selector.select

        def wait(timeout):
            found = select(0)
            if not found and timeout:
                before_time_passes()
                self.now += timeout + late_s
            return found

        self._selector.select = wait

    def time(self):
        return self.now


@pytest.mark.parametrize("late_s", [0.0, 0.06, 0.2])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_block_is_reported_within_five_seconds_of_its_beginning(monkeypatch, late_s, share):
    """D1: wherever between two looks it begins, also where the runner's loop wakes up late."""
    blocked, release = threading.Event(), threading.Event()
    agents = agent_loop._SHARED.get()

    async def nothing():
        pass

    async def blocking():
        blocked.set()
        release.wait()

    def answer():
        if not blocked.is_set():  # a loop that is free answers at once
            asyncio.run_coroutine_threadsafe(nothing(), agents._loop).result()

    class Watch(LoopWatch):
        def look(self):
            super().look()
            looked.set()

        def _keep(self, stall):
            super()._keep(stall)
            if not reported.done():
                reported.set_result((stall.function, runner_loop.time()))

    async def report():
        looking = asyncio.create_task(Watch().run())
        await looked.wait()
        answer()
        await asyncio.sleep(share * limits._LOOK_S)
        calling = asyncio.create_task(agent_loop.on_agent_loop(blocking))
        await asyncio.sleep(0)
        blocked.wait()
        began = runner_loop.time()
        function, seen = await reported
        release.set()
        await calling
        looking.cancel()
        return function, seen - began

    looked = asyncio.Event()
    runner_loop = _LoopByHand(late_s, answer)
    monkeypatch.setattr(agent_loop, "monotonic", runner_loop.time)
    reported = runner_loop.create_future()
    with contextlib.closing(runner_loop):
        function, seconds = runner_loop.run_until_complete(report())
    assert function == "blocking"
    assert agent_loop.BLOCKED_S <= seconds <= 5.0


async def test_a_look_that_fails_ends_no_watch(monkeypatch, caplog):
    """D1: such as at a stack of user code whose loader raises when it is asked for the source."""
    looks = asyncio.Semaphore(0)

    def fails():
        looks.release()
        raise ValueError("no source")

    monkeypatch.setattr(limits, "agent_loop", fails)
    monkeypatch.setattr(limits, "_LOOK_S", 0.0)
    watching = asyncio.create_task(LoopWatch().run())
    for _ in range(3):
        await looks.acquire()
    watching.cancel()
    (record,) = caplog.records
    assert record.getMessage() == "The agents' event loop cannot be watched: ValueError: no source"


@pytest.mark.usefixtures("soon")
async def test_a_blocked_child_task_is_known_to_be_its_attempts(enqueue, serving):
    """D1: frameworks run parts of an agent as tasks of their own."""
    release = threading.Event()

    async def node():
        release.wait()

    async def agent(task):
        await asyncio.create_task(node())

    await enqueue()
    async with serving(agent) as runner:
        seen = {}
        while "node" not in seen:
            await asyncio.sleep(0.001)
            seen = {each.function: each for each in runner.stalls}
        release.set()
    assert seen["node"].attempt_id is not None


@pytest.mark.usefixtures("soon")
async def test_an_agent_that_blocks_past_its_deadline_ends_and_gives_the_others_a_loop(
    enqueue, run_all
):
    """D1: DeadlineError for the one, and what had not begun runs elsewhere."""
    release = threading.Event()

    async def agent(task):
        if task.input == 0:
            release.wait()
        return task.input

    ids = await enqueue(3, timeout_s=lambda number: 600.0 if number else 0.3)
    runner, attempts, _ = await run_all(ids, agent, grace_s=0.05)
    release.set()
    assert attempts[0].status is AttemptStatus.TIMED_OUT
    assert attempts[0].failure.kind is FailureKind.DEADLINE
    assert "which is its own code. Make 'agent' a plain def" in attempts[0].failure.message
    assert [attempt.output for attempt in attempts[1:]] == [1, 2]
    assert runner.losses.counts == {"abandoned_task": 1}


@pytest.mark.usefixtures("soon")
async def test_a_blocking_callback_costs_no_running_attempt_its_loop(enqueue, serving, store):
    """D1: a callback has no task, and so no attempt; any that runs may own it."""
    release, seen = threading.Event(), []

    async def agent(task):
        seen.append(agent_loop.agent_loop())
        asyncio.get_running_loop().call_soon(release.wait)
        await asyncio.sleep(0)
        seen.append(agent_loop.agent_loop())

    ids = await enqueue()
    async with serving(agent) as runner:
        while not [each for each in runner.stalls if each.attempt_id is None]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        release.set()
        await store.wait(ids, timeout_s=100)
    assert seen[0] is seen[1]


async def test_an_agent_that_never_awaits_is_not_joined_by_others(store, enqueue, gateway):
    """D1: attempts whose time would pass in a queue are not claimed."""
    blocked, release = Signal(), threading.Event()

    async def agent(task):
        blocked.set()
        release.wait()

    await enqueue(8)
    claimed = []
    options = RunnerOptions(on_started=lambda rollout, attempt: claimed.append(rollout.id))
    stop = asyncio.Event()
    running = asyncio.create_task(Runner(store, gateway, agent, None, options).run(stop))
    await blocked.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert claimed == ["rollout_000"]
    stop.set()
    release.set()
    await running


def test_few_begin_at_once_until_agents_are_seen_to_await():
    throttle = StartThrottle()
    begun = 0
    for _ in range(4):
        batch = [f"attempt {begun + number}" for number in range(throttle.allowed(100))]
        begun += len(batch)
        for each in batch:
            throttle.begin(each)
        assert throttle.allowed(100) == 0
        for each in batch:
            throttle.begun(each, 0.01)
    assert begun == 1 + 2 + 4 + 8
    assert throttle.allowed(3) == 3
    throttle.begin("slow")
    throttle.begun("slow", 1.0)
    assert throttle.allowed(100) == 8
    throttle.begin("failed before it began")
    throttle.ended("failed before it began")
    assert throttle.allowed(100) == 8


async def test_async_agents_keep_their_context_on_the_loop_they_share(enqueue, run_all):
    """D1: each attempt has its own, and child tasks and threads inherit it."""
    mine = contextvars.ContextVar("mine", default="nobody's")

    async def agent(task):
        before = mine.get()
        mine.set(task.id)
        await asyncio.sleep(0)
        child = await asyncio.create_task(asyncio.to_thread(lambda: (mine.get(), active())))
        return [before, mine.get(), child[0], child[1].rollout.task.id]

    _, attempts, _ = await run_all(await enqueue(20), agent)
    expected = [["nobody's", str(n), str(n), str(n)] for n in range(20)]
    assert [attempt.output for attempt in attempts] == expected


async def test_what_ends_a_loop_ends_no_other_attempt(enqueue, run_all):
    """A task that nobody awaits raises SystemExit, which asyncio lets out of the loop."""

    async def leaves():
        raise SystemExit(3)

    async def agent(task):
        if task.input == 0:
            exiting = asyncio.create_task(leaves())
            await asyncio.wait({exiting})
        await asyncio.sleep(0)
        return task.input

    _, attempts, _ = await run_all(await enqueue(4), agent)
    assert [attempt.output for attempt in attempts] == [0, 1, 2, 3]


async def test_one_loop_serves_the_runs_of_a_process(enqueue, run_all):
    """D2: what a module made on it in one run works in the next."""
    loops = []

    async def agent(task):
        loops.append(asyncio.get_running_loop())

    await run_all(await enqueue(1), agent)
    await run_all(await enqueue(2), agent)
    assert len(loops) == 2
    assert loops[0] is loops[1]


async def test_tasks_that_agents_leave_over_end_with_the_run(enqueue, run_all):
    left = []

    async def forever():
        await asyncio.Event().wait()

    async def agent(task):
        left.append(asyncio.create_task(forever()))

    await run_all(await enqueue(2), agent)
    assert [task.cancelled() for task in left] == [True, True]
