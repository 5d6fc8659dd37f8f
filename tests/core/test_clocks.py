"""Deadlines under clocks that programs freeze, shift and set back."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

import agl_core as agl
from agl_core import clocks
from agl_core.app import run_blocking
from agl_core.clocks import steady_loop
from tests.core.app.conftest import Bench, bench, says_yes

__all__ = ["bench"]

freezegun = pytest.importorskip("freezegun")


def frozen():
    return freezegun.freeze_time("2001-01-01", real_asyncio=False)


@pytest.fixture
def shifted(monkeypatch):
    """Every function of `time` is an hour behind, as tools that shift time have it."""
    for name in ("time", "monotonic"):
        real = getattr(time, name)
        monkeypatch.setattr(time, name, lambda real=real: real() - 3600)
    for name in ("time_ns", "monotonic_ns"):
        real = getattr(time, name)
        monkeypatch.setattr(time, name, lambda real=real: real() - 3600 * 10**9)


def test_the_clocks_go_on_while_time_is_frozen():
    """D6: both, and a loop of ours."""
    before = clocks.monotonic(), clocks.wall(), clocks.wall_ns()
    loop = steady_loop()
    with frozen():
        assert time.time() == 978307200.0
        after = clocks.monotonic(), clocks.wall(), clocks.wall_ns()
        looped = loop.time()
    loop.close()
    assert all(then <= now for then, now in zip(before, after, strict=True))
    assert looped >= before[0]


@pytest.mark.usefixtures("shifted")
def test_the_clocks_do_not_go_back_with_the_programs():
    """D6."""
    before = clocks.monotonic(), clocks.wall()
    assert before[1] > time.time() + 3000
    assert before[0] > time.monotonic() + 3000


def test_the_wall_clock_agrees_with_the_systems():
    assert abs(clocks.wall() - time.time()) < 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the coarse clock of Linux")
def test_a_thread_that_is_held_up_between_two_readings_sets_no_clock(monkeypatch):
    """D6: only somebody who sets the wall clock moves it."""
    now, wall, held_up = [10**12], [10**18], [0]

    def read(number):
        if number == time.CLOCK_MONOTONIC:
            return now[0]
        now[0] += held_up[0]
        behind = 0 if number == time.CLOCK_REALTIME else 4_000_000
        return now[0] + wall[0] - behind

    monkeypatch.setattr(time, "clock_gettime_ns", read)
    wall_ns = clocks._make_wall_ns()
    held_up[0] = 60_000_000
    wall_ns()
    held_up[0] = 0
    assert wall_ns() == now[0] + wall[0]
    wall[0] -= 3600 * 10**9
    assert abs(wall_ns() - now[0] - wall[0]) < 10_000_000


def test_a_run_whose_agents_freeze_time_ends_at_their_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the agent stops every clock of `time`, and with it that of asyncio's own loops."""

    async def freezes(task: agl.Task) -> str:
        if task.input == 0:
            monkeypatch.setattr(time, "time", lambda: 978307200.0)
            monkeypatch.setattr(time, "monotonic", lambda: 0.0)
            await asyncio.Event().wait()
        return "yes"

    app = bench.app({"agent": freezes, "reward": says_yes}, rollout__timeout_s=1.0)
    evaluation = run_blocking(app.evaluate())
    monkeypatch.undo()
    assert evaluation.failed == {"deadline": 1}
