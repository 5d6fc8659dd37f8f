"""The outbox: events on disk that a bus has not confirmed yet."""

from __future__ import annotations

import logging
import re
import socket
import sqlite3
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import SystemRandom
from typing import Final

import msgspec

from agl_core.clocks import wall_ns
from agl_core.errors import ConfigError, StoreError
from agl_core.files import make_private_directory, touch_private
from agl_events._bus import Message

_log = logging.getLogger(__name__)

OUTBOX: Final = "events.db"
"""File in a run's directory."""
_VERSION: Final = 2
_APPLICATION: Final = 0x41474C45
"""``AGLE``: marks the file as an outbox."""
_BUSY_S: Final = 5.0
_BUSY_SHARED_S: Final = 0.05
"""Wait for an outbox of a runner, of which there are others."""
_MOST_KEPT: Final = 4 * 2**20
"""Bytes of waiting events up to which they are in memory too, and are not read from the file."""
_PACK: Final = 256
"""Events of a row at most: a row for each event takes several times as long to write."""
_PACK_BYTES: Final = 2**20
"""Bytes of a row with which it takes no more events."""
_MOST_RUNNERS: Final = 1_000
"""Runners on a machine with outboxes in one directory."""
_ID_BITS: Final = 63
"""Integers of SQLite have no more without a sign."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9.\-]")
_TABLES: Final = """\
CREATE TABLE IF NOT EXISTS packs (
    last INTEGER PRIMARY KEY, events INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


class OutboxInUseError(ConfigError):
    """Another process uses the outbox."""


class Stored(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A message with its place in the order."""

    number: int
    message: Message


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Stored]).decode


class EventOutbox:
    """The events of a run directory that wait for a bus, in one SQLite file.

    Used by one thread, and by one process at a time. A process that is killed loses no event of a
    finished `add`; if the whole machine stops, the newest may be lost. Sent events leave the file
    with the next `add` or `settle`, so a process that is killed before has them sent again.
    """

    def __init__(self, connection: sqlite3.Connection, *, most: int, most_bytes: int) -> None:
        """Read the counts; use `open`."""
        self._connection = connection
        self._most, self._most_bytes = most, most_bytes
        numbers = dict(connection.execute("SELECT name, value FROM numbers").fetchall())
        self._sent: int = numbers.get("sent", 0)
        """The greatest number of an event that was sent."""
        self._settled = True
        row = connection.execute(
            "SELECT coalesce(sum(events), 0), coalesce(sum(size), 0), max(last) FROM packs "
            "WHERE last > ?",
            (self._sent,),
        )
        self.waiting, self._bytes, newest = row.fetchone()
        self._kept: deque[Stored] = deque()
        """All that wait, as long as they are few and of this process; else empty."""
        self._read: deque[Stored] = deque()
        """What waits of the oldest row, once it was read from the file."""
        self.last: int = max(newest or 0, numbers.get("last", 0))
        """The greatest number of an event so far."""
        self.id = f"{numbers['outbox']:016x}"
        """Chosen when the file is made: numbers of another outbox say nothing about its events."""
        self.damaged = 0
        """Waiting events that could not be read from the file, and are not sent."""
        events, size = self._read_pack()  # of the oldest row, some may have been sent
        self.waiting -= events - len(self._read)
        self._bytes -= size - _size(self._read)

    @classmethod
    def open(
        cls, file: Path, *, most: int, most_bytes: int, busy_s: float | None = None
    ) -> EventOutbox:
        """Open the file, or create it; a damaged one is renamed and replaced.

        Args:
            file: The outbox.
            most: Events that it holds at most.
            most_bytes: Bytes that they have at most.
            busy_s: Longest wait for another process to end; None: 5 s.

        Raises:
            OutboxInUseError: another process uses it.
            ConfigError: the file has a later version, is not an outbox, or cannot be written.
        """
        wait_s = _BUSY_S if busy_s is None else busy_s
        try:
            make_private_directory(file.parent)
            touch_private(file)
            connection = _connect(file, wait_s)
        except sqlite3.OperationalError as error:
            used = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            kind = OutboxInUseError if used else ConfigError
            raise kind(
                f"Outbox {file} cannot be opened: {error}: end the other process that uses it, or "
                f"make the file writable"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"Outbox {file} cannot be created: {error}: make the directory writable, or set "
                f"the run's directory to another one"
            ) from error
        except sqlite3.DatabaseError as error:
            damaged = file.with_name(f"{file.name}.damaged-{wall_ns()}")
            file.rename(damaged)
            for rest in ("-wal", "-shm"):
                file.with_name(file.name + rest).unlink(missing_ok=True)
            _log.warning(
                "Outbox %s is damaged (%s): it was renamed to %s, and its events are not sent",
                file,
                error,
                damaged.name,
            )
            touch_private(file)
            connection = _connect(file, wait_s)
        return cls(connection, most=most, most_bytes=most_bytes)

    def add(self, events: Iterable[Stored]) -> int:
        """Write events durably; return the number of those that exceed the limits.

        Raises:
            StoreError: the file cannot be written.
        """
        taken: list[Stored] = []
        dropped, size = 0, self._bytes
        for event in events:
            body = event.message.body
            full = self.waiting + len(taken) >= self._most
            if full or size + len(body) > self._most_bytes:
                dropped += 1
                continue
            size += len(body)
            taken.append(event)
        if taken:
            last = taken[-1].number
            with _writing(self._connection) as connection:
                self._settle(connection)
                _insert(connection, taken)
                connection.execute("INSERT OR REPLACE INTO numbers VALUES ('last', ?)", (last,))
            self._settled = True
            if len(self._kept) == self.waiting and size <= _MOST_KEPT:
                self._kept.extend(taken)
            else:
                self._kept.clear()
            self.waiting += len(taken)
            self._bytes = size
            self.last = last
        return dropped

    def oldest(self, count: int) -> list[Stored]:
        """Return the events to send next.

        Raises:
            StoreError: the file cannot be read.
        """
        if len(self._kept) == self.waiting:
            return [*islice(self._kept, count)]
        while not self._read and self.waiting:
            try:
                self._read_pack()
            except sqlite3.Error as error:
                raise StoreError(f"The outbox of events cannot be read: {error}") from error
        return [*islice(self._read, count)]

    def _read_pack(self) -> tuple[int, int]:
        """Read what waits of the oldest row that was not sent.

        Returns:
            The number and bytes of all events of the row; 0 if there is none, or it is damaged and
            skipped.
        """
        query = "SELECT last, events, size, body FROM packs WHERE last > ? ORDER BY last LIMIT 1"
        row = self._connection.execute(query, (self._sent,)).fetchone()
        if row is None:
            self.damaged += self.waiting
            self.waiting = self._bytes = 0
            return 0, 0
        last, events, size, body = row
        try:
            found = _unpack(body)
        except msgspec.MsgspecError as error:
            _log.warning("%d events of the outbox are damaged: %s", events, error)
            self.damaged += events
            self.waiting -= events
            self._bytes -= size
            self._sent, self._settled = last, False
            return 0, 0
        self._read.extend(event for event in found if event.number > self._sent)
        return events, size

    def remove(self, sent: Sequence[Stored]) -> None:
        """Take the events of `oldest` that a bus has confirmed from those that wait."""
        self._sent, self._settled = sent[-1].number, False  # the oldest ones, in order
        self.waiting -= len(sent)
        self._bytes -= _size(sent)
        waiting = self._kept or self._read
        for _ in sent if waiting else ():
            waiting.popleft()

    def settle(self) -> None:
        """Delete sent events from the file.

        Raises:
            StoreError: the file cannot be written; the events will be sent again.
        """
        if not self._settled:
            with _writing(self._connection) as connection:
                self._settle(connection)
            self._settled = True

    def close(self) -> None:
        """Settle and close the file; one that cannot be written keeps sent events."""
        try:
            self.settle()
        except StoreError as error:
            _log.warning("%s. Events that were sent will be sent again", error)
        finally:
            self._connection.close()

    def _settle(self, connection: sqlite3.Connection) -> None:
        if not self._settled:
            connection.execute("DELETE FROM packs WHERE last <= ?", (self._sent,))
            connection.execute("INSERT OR REPLACE INTO numbers VALUES ('sent', ?)", (self._sent,))


def runner_outbox(directory: Path, number: int) -> Path:
    """Return the file of an outbox of this machine's runners."""
    return directory / f"events.{host()}.{number}.db"


def outboxes(directory: Path) -> list[Path]:
    """Return the outboxes in a run's directory: the trainer's, and those of runners."""
    runners = sorted(each for each in directory.glob("events.*.db") if each.is_file())
    return [each for each in (directory / OUTBOX,) if each.is_file()] + runners


def open_free(directory: Path, *, most: int, most_bytes: int) -> tuple[int, EventOutbox]:
    """Open the first outbox of this machine's runners that no other process uses.

    A runner that starts after one was killed so gets the events that the other one left.

    Returns:
        The number of the outbox, from 1, and the outbox.

    Raises:
        ConfigError: as for `EventOutbox.open`, or all are in use.
    """
    for number in range(1, _MOST_RUNNERS + 1):
        file = runner_outbox(directory, number)
        try:
            box = EventOutbox.open(file, most=most, most_bytes=most_bytes, busy_s=_BUSY_SHARED_S)
        except OutboxInUseError:
            continue
        return number, box
    raise OutboxInUseError(
        f"All {_MOST_RUNNERS} outboxes of runners in {directory} are in use: give runners "
        f"directories of their own"
    )


def host() -> str:
    """Return the name of this machine as part of a file's name."""
    return _NO_NAME.sub("_", socket.gethostname())[:100] or "host"


def _connect(file: Path, busy_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=busy_s, isolation_level=None)
    try:
        # One process at a time: two would send every event twice.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _check(connection, file)
        with _locked(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            for statement in _TABLES.split(";\n")[:-1]:
                connection.execute(statement)
            if version == 1:
                _migrate(connection)
            new = SystemRandom().getrandbits(_ID_BITS)
            connection.execute("INSERT OR IGNORE INTO numbers VALUES ('outbox', ?)", (new,))
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Move the events of a file of version 1, which had a row for each."""
    rows = connection.execute("SELECT number, id, channel, body FROM events ORDER BY number")
    while events := rows.fetchmany(_PACK):
        _insert(
            connection,
            [
                Stored(number=number, message=Message(id=id_, channel=channel, body=body))
                for number, id_, channel, body in events
            ],
        )
    connection.execute("DROP TABLE events")


def _insert(connection: sqlite3.Connection, events: Sequence[Stored]) -> None:
    rows: list[tuple[int, int, int, bytes]] = []
    start = size = 0
    for end, event in enumerate(events, start=1):
        size += len(event.message.body)
        if end == len(events) or end - start == _PACK or size >= _PACK_BYTES:
            rows.append((event.number, end - start, size, _pack(events[start:end])))
            start, size = end, 0
    connection.executemany("INSERT INTO packs VALUES (?, ?, ?, ?)", rows)


def _size(events: Iterable[Stored]) -> int:
    return sum(len(event.message.body) for event in events)


def _check(connection: sqlite3.Connection, file: Path) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if (tables and owner != _APPLICATION) or version > _VERSION:
        is_what = f"has version {version}" if owner == _APPLICATION else "is another database"
        raise ConfigError(
            f"Outbox {file} {is_what}, and this agl-core reads version {_VERSION}: update "
            f"agl-core, or move the file away; its events are then not sent"
        )


@contextmanager
def _locked(connection: sqlite3.Connection) -> Generator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _writing(connection: sqlite3.Connection) -> Generator[sqlite3.Connection]:
    try:
        with _locked(connection) as locked:
            yield locked
    except sqlite3.Error as error:
        raise StoreError(f"The outbox of events cannot be written: {error}") from error
