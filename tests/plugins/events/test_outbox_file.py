"""The file of the outbox: what it holds when events are written, sent and removed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from agl_events import Message, _outbox
from agl_events._outbox import EventOutbox, Stored


def stored(*numbers: int) -> list[Stored]:
    return [
        Stored(number=number, message=Message(id=f"event_{number}", channel="a", body=b"{}"))
        for number in numbers
    ]


def opened(tmp_path: Path) -> EventOutbox:
    return EventOutbox.open(tmp_path / "events.db", most=100, most_bytes=1_000)


def in_file(tmp_path: Path) -> list[int]:
    """Open the file as after a kill, and return the numbers of its events."""
    copy = tmp_path / "copy"
    copy.mkdir(exist_ok=True)
    for file in tmp_path.glob("events.db*"):
        (copy / file.name).write_bytes(file.read_bytes())
    connection = sqlite3.connect(copy / "events.db")
    try:
        return [row[0] for row in connection.execute("SELECT number FROM events ORDER BY number")]
    finally:
        connection.close()


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
