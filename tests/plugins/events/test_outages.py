"""A bus that is down for an hour, by a clock that the tests move: nothing waits, nothing is assumed."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agl_events._sender import EventSender
from agl_reading import read_services

from agl_core import clocks
from tests.plugins.events.conftest import LIMITS, put
from tests.plugins.events.jumping_loop import JumpingLoop
from tests.plugins.events.memory_bus import Server

Make = Callable[..., EventSender]

HOUR = 3_600
KEPT = 1_000
LONGEST_PAUSE = 30 + 10
"""Seconds after which the sender tries again at the latest, and waits for an answer."""


@pytest.fixture
def loop(monkeypatch: Any) -> JumpingLoop:
    made = JumpingLoop()
    monkeypatch.setattr("agl_events._sender.steady_loop", lambda: made)
    return made


@pytest.mark.parametrize("fault", ["down", "hangs"])
@pytest.mark.parametrize("begins", [0, 100])
def test_an_outage_of_an_hour_is_bounded_counted_and_made_up_for(
    sender: Make,
    server: Server,
    loop: JumpingLoop,
    tmp_path: Path,
    caplog: Any,
    fault: str,
    begins: int,
) -> None:
    """One event a second; those that the outbox holds come in order, and then the later ones."""
    caplog.set_level(logging.INFO, "agl_events")
    box = sender(replace(LIMITS, events=KEPT))
    total, over, sizes = begins + HOUR + 200, threading.Event(), list[int]()
    ends = begins + HOUR

    def during() -> None:
        sizes.append(sum(each.stat().st_size for each in tmp_path.glob("events.db*")))

    for second in range(total):
        loop.call_at(second + 0.5, lambda number=second: put(box, n=number))
    loop.call_at(begins - 0.1, setattr, server, fault, True)
    loop.call_at(ends - 1, during)
    loop.call_at(ends, setattr, server, fault, False)
    loop.call_at(total + LONGEST_PAUSE, over.set)
    box.open(connect_s=5)
    assert over.wait(120)
    assert box.close(within_s=10) == 0

    lost = box.losses()
    dropped = lost["events_dropped"]
    assert lost == {"events_dropped": dropped}
    assert HOUR - KEPT <= dropped <= HOUR - KEPT + LONGEST_PAUSE
    numbers = [event.data["n"] for event in server.events]
    assert len(numbers) == total - dropped
    assert numbers[: begins + KEPT] == list(range(begins + KEPT))
    later = numbers[begins + KEPT :]
    assert later == list(range(total - len(later), total))
    assert [event.metadata["sequence"] for event in server.events] == [n + 1 for n in numbers]
    assert HOUR / LONGEST_PAUSE <= server.tries <= HOUR / 15 + 10
    assert sizes[0] < 6 * 2**20  # the journal of SQLite has 4 MB at most
    (state,) = read_services(tmp_path)
    assert (state.facts["events_dropped"], state.facts["waiting"]) == (dropped, 0)
    text = {"down": "is down: it is tried again", "hangs": "bus does not answer"}[fault]
    for said in (text, "The outbox is full", "The event bus takes events again"):
        assert caplog.text.count(said) == 1, said


def test_a_clock_that_is_set_back_in_an_outage_changes_nothing(
    sender: Make, server: Server, loop: JumpingLoop, monkeypatch: Any
) -> None:
    """Pauses, order and limits follow the loop's clock and the numbers of events."""
    over = threading.Event()
    wall = [2_000_000_000 * 10**9]
    monkeypatch.setattr("agl_events._sender.wall_ns", lambda: wall[0])
    box = sender()
    server.down = True

    def set_back() -> None:
        wall[0] -= 86_400 * 10**9

    for second in range(300):
        loop.call_at(second + 0.5, lambda number=second: put(box, n=number))
    loop.call_at(100, set_back)
    loop.call_at(200, set_back)
    loop.call_at(250, setattr, server, "down", False)
    loop.call_at(300 + LONGEST_PAUSE, over.set)
    box.open(connect_s=5)
    assert over.wait(120)
    assert box.close(within_s=10) == 0
    assert box.losses() == {}
    assert [event.data["n"] for event in server.events] == list(range(300))
    times = [event.time for event in server.events]
    assert times[0] > times[150] > times[-1]
    assert 250 / 30 <= server.tries <= 30


def test_a_clock_that_is_behind_after_a_restart_leaves_the_order(
    sender: Make, server: Server, monkeypatch: Any
) -> None:
    """Times of the second process are before those that wait in the outbox."""
    server.down = True
    before = sender()
    before.open(connect_s=5)
    for number in range(3):
        put(before, n=number)
    assert before.close(within_s=0.1) == 3
    server.down = False
    now = clocks.wall_ns()
    monkeypatch.setattr(clocks, "_wall_ns", [lambda: now - 3_600 * 10**9])
    monkeypatch.setattr(clocks._SOURCE, "last", 0)
    after = sender()
    after.open(connect_s=5)
    for number in range(3, 6):
        put(after, n=number)
    assert after.close(within_s=10) == 0
    assert [event.data["n"] for event in server.events] == list(range(6))
    assert [event.metadata["sequence"] for event in server.events] == list(range(1, 7))
    ids = [event.id for event in server.events]
    assert sorted(set(ids)) == ids
    assert server.events[3].time < server.events[0].time
