"""The outbox and the thread that sends from it: nothing is lost, nothing grows, nobody waits."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agl_events import BusEvent, BusOptions, Message
from agl_events._outbox import EventOutbox, Stored
from agl_events._sender import EventSender

from agl_core.errors import ConfigError, StoreError
from tests.plugins.events.conftest import LIMITS, events_in, make_event, put
from tests.plugins.events.memory_bus import MemoryBus, Server

Make = Callable[..., EventSender]


def stored(number: int, body: bytes = b"{}") -> Stored:
    return Stored(number=number, message=Message(id=f"event_{number}", channel="a", body=body))


def opened(file: Path, most: int = 10, most_bytes: int = 1_000) -> EventOutbox:
    return EventOutbox.open(file, most=most, most_bytes=most_bytes)


def test_events_are_sent_in_order_and_leave_the_outbox(sender: Make, server: Server) -> None:
    box = sender()
    box.open(connect_s=5)
    for number in range(200):
        put(box, n=number)
    assert box.close(within_s=10) == 0
    assert [event.data["n"] for event in server.events] == list(range(200))
    assert [event.metadata["sequence"] for event in server.events] == list(range(1, 201))
    assert len({event.id for event in server.events}) == 200
    assert max(server.windows) <= 64
    assert box.losses() == {}


def test_a_bus_that_is_down_at_the_start_gets_everything_later(
    sender: Make, server: Server, caplog: Any
) -> None:
    server.down = True
    box = sender()
    box.open(connect_s=5)
    for number in range(10):
        put(box, n=number)
    assert box.close(within_s=10) == 10
    server.down = False
    again = sender()
    again.open(connect_s=5)
    put(again, n=10)
    assert again.close(within_s=10) == 0
    assert [event.data["n"] for event in server.events] == list(range(11))
    assert [event.metadata["sequence"] for event in server.events] == list(range(1, 12))
    (line,) = [each.message for each in caplog.records if "is down" in each.message]
    assert "memory://***@host is down: it is tried again after up to 30 s" in line
    assert "secret" not in caplog.text


def test_a_bus_that_goes_away_in_mid_run_gets_everything_when_it_is_back(
    sender: Make, server: Server, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agl_events._sender._FIRST_RETRY_S", 0.01)
    box = sender()
    box.open(connect_s=5)
    put(box, n=0)
    wait_until(lambda: len(server.taken) == 1)
    server.down = True
    put(box, n=1)
    wait_until(lambda: server.tries >= 3)
    server.down = False
    put(box, n=2)
    assert box.close(within_s=10) == 0
    assert [event.data["n"] for event in server.events] == [0, 1, 2]


def test_a_bus_that_hangs_stops_neither_start_nor_end(
    sender: Make, server: Server, caplog: Any
) -> None:
    server.hangs = True
    box = sender()
    box.open(connect_s=0.05)
    put(box, n=0)
    assert box.close(within_s=0.05) == 1
    assert "The event bus does not answer" in caplog.text


def test_a_refused_password_is_an_error_at_the_start(sender: Make, server: Server) -> None:
    server.login_fails = True
    box = sender()
    with pytest.raises(ConfigError, match="refuses the password"):
        box.open(connect_s=5)
    assert server.closed == 1
    put(box, n=0)
    assert box.losses() == {"events_dropped": 1}


def test_an_outage_is_bounded_and_counted(sender: Make, server: Server, caplog: Any) -> None:
    server.down = True
    box = sender(replace(LIMITS, events=50))
    box.open(connect_s=5)
    for number in range(120):
        put(box, n=number)
    assert box.close(within_s=5) == 50
    assert box.losses() == {"events_dropped": 70}
    assert caplog.text.count("The outbox is full") == 1


def test_the_bytes_of_an_outage_are_bounded(sender: Make, server: Server, tmp_path: Path) -> None:
    server.down = True
    box = sender(replace(LIMITS, size=50_000))
    box.open(connect_s=5)
    for _ in range(100):
        put(box, text="x" * 1_000)
    waiting = box.close(within_s=5)
    assert 30 <= waiting < 50
    assert box.losses() == {"events_dropped": 100 - waiting}
    assert (tmp_path / "events.db").stat().st_size < 150_000


def test_a_large_event_is_cut_and_says_so(sender: Make, server: Server) -> None:
    box = sender()
    box.open(connect_s=5)
    put(box, "rollout:finished", output="x" * 10_000_000, n=7)
    put(box, "rollout:finished", output={str(n): ["y" * 999] * 200 for n in range(200)})
    assert box.close(within_s=10) == 0
    first, second = server.events
    assert first.data == {"output": "x" * 1_000, "n": 7}
    assert first.metadata["cut"] > 10_000_000
    assert second.data == {}
    assert second.metadata["cut"] > 30_000_000
    assert all(len(message.body) <= LIMITS.event_size for message in server.taken)
    assert box.losses() == {"events_cut": 2}


def test_any_text_and_number_arrives_as_json(sender: Make, server: Server) -> None:
    box = sender()
    box.open(connect_s=5)
    put(box, text="a\x00b\ud83dc", nan=float("nan"), long=2**70, **{"\ud83d\x00": 1})
    assert box.close(within_s=10) == 0
    (event,) = server.events
    assert event.data == {"text": "a\x00b\ufffdc", "nan": None, "long": 2**70, "\ufffd\x00": 1}


def test_what_has_no_json_form_is_counted(sender: Make, server: Server, caplog: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    box = sender()
    box.open(connect_s=5)
    put(box, it=object())
    put(box, it=endless)
    put(box, it=1)
    assert box.close(within_s=10) == 0
    assert [event.data for event in server.events] == [{"it": 1}]
    assert box.losses() == {"events_dropped": 2}
    assert caplog.text.count("has no JSON form") == 1


def test_an_event_that_cannot_be_made_is_counted_and_the_others_are_sent(
    tmp_path: Path, server: Server, caplog: Any
) -> None:
    """As when a filter fails."""

    def made(channel: str, time: float, data: bytes, metadata: dict[str, Any]) -> BusEvent:
        if metadata["sequence"] == 2:
            raise LookupError("no such pattern")
        return make_event(channel, time, data, metadata)

    bus = MemoryBus("memory://host", BusOptions())
    box = EventSender(tmp_path / "events.db", lambda: bus, made, LIMITS)
    box.open(connect_s=5)
    for number in range(3):
        put(box, n=number)
    assert box.close(within_s=10) == 0
    assert [event.data["n"] for event in server.events] == [0, 2]
    assert box.losses() == {"events_dropped": 1}
    assert "could not be made: LookupError: no such pattern" in caplog.text


def test_unroutable_and_refused_events_are_counted_and_not_sent_again(
    sender: Make, server: Server
) -> None:
    server.outcomes = ["delivered", "unroutable", "refused"]
    box = sender()
    box.open(connect_s=5)
    for _ in range(3):
        put(box)
    assert box.close(within_s=10) == 0
    assert len(server.taken) == 3
    first = server.windows[0]  # 1 if the first event was written by itself
    expected = {"events_unroutable": 1, "events_refused": 1}
    assert box.losses() == (expected if first == 3 else {"events_unroutable": 1})


def test_put_never_waits_for_the_disk_and_is_bounded(
    sender: Make, server: Server, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agl_events._sender._IN_MEMORY", 20)
    writing, go_on = threading.Event(), threading.Event()
    add = EventOutbox.add

    def slow(self: EventOutbox, events: Any) -> int:
        writing.set()
        assert go_on.wait(30)
        return add(self, events)

    monkeypatch.setattr(EventOutbox, "add", slow)
    box = sender()
    box.open(connect_s=5)
    put(box, n=-1)
    assert writing.wait(30)
    for number in range(30):
        put(box, n=number)
    go_on.set()
    assert box.close(within_s=10) == 0
    assert [event.data["n"] for event in server.events] == [-1, *range(20)]
    assert box.losses() == {"events_dropped": 10}


def test_a_gap_in_the_sequence_shows_a_dropped_event(sender: Make, server: Server) -> None:
    box = sender()
    box.open(connect_s=5)
    put(box)
    put(box, it=object())
    put(box)
    assert box.close(within_s=10) == 0
    assert [event.metadata["sequence"] for event in server.events] == [1, 3]


def test_a_full_disk_is_counted_and_stops_nothing(
    sender: Make, server: Server, monkeypatch: Any, caplog: Any
) -> None:
    def full(self: EventOutbox, events: Any) -> int:
        raise StoreError("The outbox of events cannot be written: database or disk is full")

    monkeypatch.setattr(EventOutbox, "add", full)
    box = sender()
    box.open(connect_s=5)
    put(box)
    put(box)
    assert box.close(within_s=10) == 0
    assert box.losses() == {"events_dropped": 2}
    assert caplog.text.count("disk is full") == 1


def test_a_clock_that_goes_back_leaves_the_order(
    sender: Make, server: Server, monkeypatch: Any
) -> None:
    times = iter([2_000_000_000 * 10**9, 10**18, 3 * 10**9])
    monkeypatch.setattr("agl_events._sender.wall_ns", lambda: next(times))
    box = sender()
    box.open(connect_s=5)
    for _ in range(3):
        put(box)
    assert box.close(within_s=10) == 0
    assert [event.time[:4] for event in server.events] == ["2033", "2001", "1970"]
    assert [event.metadata["sequence"] for event in server.events] == [1, 2, 3]
    assert sorted(event.id for event in server.events) == [event.id for event in server.events]


def test_the_files_are_private(sender: Make, server: Server, tmp_path: Path) -> None:
    server.down = True
    box = sender()
    box.open(connect_s=5)
    put(box)
    wait_until(lambda: server.tries >= 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    box.close(within_s=0)


def test_a_damaged_outbox_is_renamed_and_the_run_goes_on(tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "events.db"
    file.write_bytes(b"no database at all" * 1_000)
    box = opened(file)
    assert box.add([stored(1)]) == 0
    box.close()
    (damaged,) = tmp_path.glob("events.db.damaged-*")
    assert damaged.read_bytes().startswith(b"no database")
    assert "is damaged" in caplog.text


def test_an_outbox_that_was_damaged_inside_is_renamed(tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "events.db"
    box = opened(file, most=1_000, most_bytes=10**7)
    box.add([stored(number, b"x" * 3_000) for number in range(1, 50)])
    box.close()
    data = bytearray(file.read_bytes())
    data[4096:12_288] = os.urandom(8_192)
    file.write_bytes(data)
    opened(file).close()
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(
    ("application", "what"), [(0x41474C45, "has version 3"), (7, "is another")]
)
def test_an_outbox_of_a_later_version_is_refused(
    tmp_path: Path, application: int, what: str
) -> None:
    file = tmp_path / "events.db"
    box = opened(file)
    box.close()
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 3")
        connection.execute(f"PRAGMA application_id = {application}")
    connection.close()
    with pytest.raises(ConfigError, match=what):
        opened(file)


def test_an_outbox_that_another_process_uses_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("agl_events._outbox._BUSY_S", 0.01)
    box = opened(tmp_path / "events.db")
    box.add([stored(1)])
    with pytest.raises(ConfigError, match="end the other process"):
        opened(tmp_path / "events.db")
    box.close()


KILLED = """\
import os, signal, sys, threading
from pathlib import Path
from tests.plugins.events.conftest import LIMITS, make_event, put
from tests.plugins.events.memory_bus import MemoryBus, server_of
from agl_events import BusOptions
from agl_events._outbox import EventOutbox
from agl_events._sender import EventSender
add, written = EventOutbox.add, []
def noted(outbox, events):
    add(outbox, events)
    written[:] = [outbox.last]
    return 0
EventOutbox.add = noted
server_of("host").down = True
bus = MemoryBus("memory://host", BusOptions())
box = EventSender(Path(sys.argv[1]), lambda: bus, make_event, LIMITS)
box.open(connect_s=5)
for number in range(300):
    put(box, n=number)
    if number == 250:
        while written != [251]:
            threading.Event().wait(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_written_before_a_kill_is_sent_after_it_with_the_same_id(
    sender: Make, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "events.db"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    ids = [each.message.id for each in events_in(file)]
    assert len(ids) >= 251
    box = sender()
    box.open(connect_s=5)
    put(box, n="later")
    assert box.close(within_s=10) == 0
    *before, last = server.events
    assert [event.id for event in before] == ids
    assert [event.data["n"] for event in before] == list(range(len(ids)))
    assert last.data == {"n": "later"}
    assert last.metadata["sequence"] == len(ids) + 1


def wait_until(true: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(3_000):
        if true():
            return
        waited.wait(0.01)
    raise AssertionError("it did not come to pass within 30 s")
