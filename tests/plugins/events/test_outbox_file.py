"""The file of the outbox: what it holds when events are written, sent and removed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from agl_events import Message, _outbox
from agl_events._outbox import EventOutbox, Stored

from tests.plugins.events.conftest import events_in


def stored(*numbers: int) -> list[Stored]:
    return [
        Stored(number=number, message=Message(id=f"event_{number}", channel="a", body=b"{}"))
        for number in numbers
    ]


def opened(tmp_path: Path) -> EventOutbox:
    return EventOutbox.open(tmp_path / "events.db", most=100, most_bytes=1_000)


def in_file(tmp_path: Path) -> list[int]:
    return [each.number for each in events_in(tmp_path / "events.db")]


def test_sent_events_leave_the_file_with_the_next_ones(tmp_path: Path) -> None:
    box = opened(tmp_path)
    box.add(stored(1, 2, 3))
    box.remove(box.oldest(2))
    assert (box.waiting, [each.number for each in box.oldest(9)]) == (1, [3])
    assert in_file(tmp_path) == [1, 2, 3]
    box.add(stored(4))
    assert in_file(tmp_path) == [3, 4]
    box.remove(box.oldest(2))
    box.settle()
    assert (box.waiting, box.oldest(9), in_file(tmp_path)) == (0, [], [])
    box.close()


def test_closing_deletes_sent_events(tmp_path: Path) -> None:
    box = opened(tmp_path)
    box.add(stored(1, 2))
    box.remove(box.oldest(1))
    box.close()
    again = opened(tmp_path)
    assert (again.waiting, [each.number for each in again.oldest(9)], again.last) == (1, [2], 2)
    again.close()


@pytest.mark.parametrize("kept", [0, 5, 1_000])
def test_events_come_in_order_from_memory_or_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(_outbox, "_MOST_KEPT", kept)
    box, read = opened(tmp_path), []
    numbers = iter(range(1, 31))
    for size in (1, 4, 2, 9, 1, 3, 10):
        box.add(stored(*(next(numbers) for _ in range(size))))
        sent = box.oldest(4)
        box.remove(sent)
        read += sent
    while sent := box.oldest(4):
        box.remove(sent)
        read += sent
    assert [each.number for each in read] == [*range(1, 31)]
    assert read == stored(*range(1, 31))
    assert box.waiting == 0
    box.close()
    again = opened(tmp_path)
    assert again.waiting == 0
    again.close()


@pytest.mark.parametrize("sent", [0, 1, 3, 4, 7, 9])
def test_rows_hold_several_events_and_are_deleted_when_all_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    monkeypatch.setattr(_outbox, "_PACK", 4)
    box = opened(tmp_path)
    box.add(stored(*range(1, 10)))
    if sent:
        box.remove(box.oldest(sent))
    box.close()
    rows = sqlite3.connect(tmp_path / "events.db")
    assert [row[0] for row in rows.execute("SELECT last FROM packs ORDER BY last")] == [
        last for last in (4, 8, 9) if last > sent
    ]
    rows.close()
    again = opened(tmp_path)
    assert (again.waiting, again.last) == (9 - sent, 9)
    assert in_file(tmp_path) == [*range(sent + 1, 10)]
    full = EventOutbox.open(tmp_path / "other.db", most=100, most_bytes=2 * (9 - sent))
    assert full.add(stored(*range(20))) == 20 - (9 - sent)
    full.close()
    assert again._bytes == 2 * (9 - sent)
    again.close()


def test_a_large_event_ends_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_outbox, "_PACK_BYTES", 5)
    box = opened(tmp_path)
    box.add(stored(*range(1, 8)))
    box.close()
    rows = sqlite3.connect(tmp_path / "events.db")
    assert rows.execute("SELECT last, events, size FROM packs").fetchall() == [
        (3, 3, 6),
        (6, 3, 6),
        (7, 1, 2),
    ]
    rows.close()


OF_VERSION_1 = """
CREATE TABLE events (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, channel TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO numbers VALUES ('outbox', 11), ('last', 9);
INSERT INTO events VALUES (3, 'event_3', 'a', CAST('{}' AS BLOB));
INSERT INTO events VALUES (5, 'event_5', 'a', CAST('{}' AS BLOB));
INSERT INTO events VALUES (9, 'event_9', 'a', CAST('{}' AS BLOB));
PRAGMA user_version = 1;
PRAGMA application_id = 1095191621;
"""


def test_events_of_an_outbox_of_version_1_are_sent(tmp_path: Path) -> None:
    file = sqlite3.connect(tmp_path / "events.db")
    file.executescript(OF_VERSION_1)
    file.close()
    for _ in range(2):
        box = opened(tmp_path)
        assert (box.waiting, box.last, box.id) == (3, 9, f"{11:016x}")
        assert box.oldest(9) == stored(3, 5, 9)
        box.close()


def test_a_damaged_row_is_counted_and_the_others_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_outbox, "_PACK", 2)
    box = opened(tmp_path)
    box.add(stored(*range(1, 8)))
    box.close()
    rows = sqlite3.connect(tmp_path / "events.db")
    rows.execute("UPDATE packs SET body = x'c1' WHERE last IN (2, 6)")
    rows.commit()
    rows.close()
    box = opened(tmp_path)
    read = []
    while found := box.oldest(9):
        read += [each.number for each in found]
        box.remove(found)
    assert (read, box.damaged, box.waiting, box._bytes) == ([3, 4, 7], 4, 0, 0)
    assert caplog.text.count("2 events of the outbox are damaged") == 2
    box.close()
    assert in_file(tmp_path) == []
