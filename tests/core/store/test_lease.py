from __future__ import annotations

import asyncio
import math
import time

import pytest
from agl_testing._store_samples import begin, begin_all, rollout, succeed
from agl_testing.clock import ManualClock

from agl_core.errors import LeadHeldError, StoreError
from agl_core.store._memory import MemoryStore
from agl_core.store._waiting import LATE_S, SystemClock, Watchdog
from agl_core.types import AttemptStatus, Limits, RolloutQuery, RolloutStatus


class Sweeper:
    """Counts sweeps; says when the next attempt is due."""

    def __init__(self, clock):
        self.clock = clock
        self.due = math.inf
        self.times = []
        self.anew = []
        self.fail = False

    async def __call__(self):
        self.times.append(self.clock.now())
        if self.fail:
            self.fail = False
            raise StoreError("busy")
        if self.due <= self.clock.now():
            self.due = math.inf
        return self.due

    async def restart_timers(self):
        self.anew.append(self.clock.now())
        if self.fail:
            self.fail = False
            raise StoreError("busy")


@pytest.fixture
def clock():
    return ManualClock(now=0.0)


@pytest.fixture
async def watched(clock):
    sweeper = Sweeper(clock)
    watchdog = Watchdog(clock, sweeper, restart_timers=sweeper.restart_timers)
    task = asyncio.ensure_future(watchdog.run())
    await clock.advance(0)
    yield sweeper, watchdog
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_watchdog_sleeps_until_something_is_due(watched, clock):
    sweeper, watchdog = watched
    await clock.advance(1_000_000)
    assert sweeper.times == [0]
    sweeper.due = 1_000_030
    watchdog.notice(1_000_030)
    await clock.advance(29)
    assert sweeper.times == [0]
    await clock.advance(1)
    assert sweeper.times == [0, 1_000_030]


async def test_earlier_attempt_wakes_the_watchdog_earlier(watched, clock):
    sweeper, watchdog = watched
    watchdog.notice(100)
    await clock.advance(1)
    sweeper.due = 5
    watchdog.notice(5)
    watchdog.notice(50)
    await clock.advance(10)
    assert sweeper.times == [0, 5]


async def test_attempt_noticed_during_a_sweep_is_not_missed(clock):
    sweeping, go_on = asyncio.Event(), asyncio.Event()
    times = []

    async def sweep():
        times.append(clock.now())
        sweeping.set()
        await go_on.wait()
        return math.inf

    watchdog = Watchdog(clock, sweep, restart_timers=sweep)
    task = asyncio.ensure_future(watchdog.run())
    await sweeping.wait()
    watchdog.notice(3)
    go_on.set()
    await clock.advance(5)
    assert times == [0, 3]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_watchdog_looks_again_where_it_may_not_be_told(clock):
    sweeper = Sweeper(clock)
    task = asyncio.ensure_future(
        Watchdog(clock, sweeper, restart_timers=sweeper.restart_timers, longest_s=10).run()
    )
    await clock.advance(25)
    assert sweeper.times == [0, 10, 20]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_store_error_does_not_end_the_watch(watched, clock, caplog):
    sweeper, watchdog = watched
    sweeper.fail = True
    sweeper.due = 10
    watchdog.notice(10)
    await clock.advance(20)
    assert sweeper.times == [0, 10, 11]
    assert "cannot end overdue attempts" in caplog.text


async def test_watchdog_tells_of_a_trouble_once(watched, clock, caplog):
    sweeper, watchdog = watched
    watchdog.notice(10)
    await clock.advance(9.5)
    for _ in range(20):
        sweeper.fail = True
        await clock.advance(1)
    assert len(sweeper.times) == 21
    assert caplog.text.count("cannot end overdue attempts") == 1


@pytest.mark.parametrize("hours", [3, -3])
async def test_a_clock_that_was_set_makes_everything_begin_anew(watched, clock, hours, caplog):
    sweeper, watchdog = watched
    sweeper.due = 30
    watchdog.notice(30)
    await clock.advance(10)
    clock.set_by(hours * 3600)
    sweeper.fail = True
    await clock.advance(20.5)
    after = hours * 3600 + 30
    assert sweeper.anew == [after]
    assert sweeper.times == [0]
    await clock.advance(1)
    assert sweeper.anew == [after, after + 1]
    assert sweeper.times == [0, after + 1]
    assert f"{hours * 3600:+.1f} s" in caplog.text
    await clock.advance(20)
    assert len(sweeper.anew) == 2


async def test_watchdog_that_was_held_up_leaves_time_for_heartbeats(clock):
    sweeper = Sweeper(clock)
    watchdog = Watchdog(clock, sweeper, restart_timers=sweeper.restart_timers)
    task = asyncio.ensure_future(watchdog.run())
    await clock.advance(0)
    watchdog.notice(10)
    clock._elapsed = 500.0
    await clock.advance(LATE_S / 2)
    assert sweeper.times == [0]
    await clock.advance(LATE_S)
    assert sweeper.times == [0, 500 + LATE_S]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_system_clock_returns_at_the_event_or_the_time():
    clock = SystemClock()
    event = asyncio.Event()
    await clock.wait(event, until=time.time() - 1)
    until = time.time() + 0.01
    await clock.wait(event, until=until)
    assert time.time() >= until - 0.001
    waiting = asyncio.ensure_future(clock.wait(event, until=math.inf))
    # A wait that returns at once has done so by then.
    await clock.wait(asyncio.Event(), until=time.time() + 0.01)
    assert not waiting.done()
    event.set()
    await asyncio.wait_for(waiting, 100)


@pytest.fixture
async def store(clock):
    store = MemoryStore(clock=clock)
    await store.open()
    yield store
    await store.close()


async def test_heartbeats_keep_an_attempt_until_its_deadline(store, clock):
    claim = await begin(store, limits=Limits(timeout_s=100, lease_s=10))
    for _ in range(11):
        await clock.advance(9)
        assert await store.heartbeat([claim.attempt.id]) == []
    await clock.advance(5.5)
    assert await store.heartbeat([claim.attempt.id]) == []
    (running,) = await store.rollouts(RolloutQuery())
    assert running.status is RolloutStatus.RUNNING
    await clock.advance(1)
    (ended,) = await store.rollouts(RolloutQuery())
    assert ended.attempts[-1].status is AttemptStatus.TIMED_OUT
    assert ended.attempts[-1].ended_at == 105
    assert await store.heartbeat([claim.attempt.id]) == [claim.attempt.id]


async def test_worker_has_time_to_hand_in_what_it_ends_at_the_deadline(store, clock):
    claim = await begin(store, limits=Limits(timeout_s=20, lease_s=60))
    await clock.advance(24.9)
    attempt = await store.finish(claim.attempt.id, status=AttemptStatus.TIMED_OUT)
    assert attempt.failure.kind == "deadline"
    assert attempt.ended_at == 24.9


async def test_lost_attempts_are_retried_until_none_remain(store, clock):
    await store.enqueue([rollout(limits=Limits(lease_s=10, max_attempts=3))])
    for fence in (1, 2, 3):
        (claim,) = await store.claim("w", timeout_s=0)
        assert claim.attempt.fence == fence
        await clock.advance(10)
    (ended,) = await store.rollouts(RolloutQuery())
    assert [one.status for one in ended.attempts] == [AttemptStatus.LOST] * 3
    assert [one.ended_at for one in ended.attempts] == [10, 20, 30]
    assert ended.status is RolloutStatus.FAILED
    assert await store.claim("w", timeout_s=0) == []


async def test_finished_attempts_do_not_wake_the_watchdog(clock):
    store = MemoryStore(clock=clock)
    await store.open()
    claim = await begin(store, limits=Limits(lease_s=10))
    await succeed(store, claim)
    await clock.advance(1000)
    (ended,) = await store.rollouts(RolloutQuery())
    assert ended.status is RolloutStatus.SUCCEEDED
    await store.close()


@pytest.mark.parametrize("hours", [5, -5])
async def test_attempts_outlive_a_clock_that_is_set(store, clock, hours):
    """Those that send heartbeats go on; those that do not end, a lease later and not hours."""
    limits = Limits(timeout_s=100, lease_s=30, max_attempts=1)
    alive, _ = await begin_all(store, 2, limits=limits)
    await store.lead("trainer", lease_s=30)
    await clock.advance(5)
    clock.set_by(hours * 3600)
    for _ in range(2):
        await clock.advance(20)
        assert await store.heartbeat([alive.attempt.id]) == []
    with pytest.raises(LeadHeldError):
        await store.lead("other", lease_s=30)
    await clock.advance(25)
    kept, ended = await store.rollouts(RolloutQuery())
    assert (kept.status, ended.status) == (RolloutStatus.RUNNING, RolloutStatus.FAILED)
    assert ended.attempts[-1].status is AttemptStatus.LOST
    await store.lead("other", lease_s=30)
    await succeed(store, alive)
