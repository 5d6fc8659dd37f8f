"""A store's file, opened for reading only."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NoReturn, Protocol, TypeVar, runtime_checkable

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.store._operations import Operations
from agl_core.store._schema import SCHEMA_VERSION, FileSettings, roll_back, store_errors
from agl_core.store._sql import SqlRecords
from agl_core.store.base import BatchingStore
from agl_core.store.records import Records

T = TypeVar("T")


@runtime_checkable
class Readable(Protocol):
    """A store that can be looked at without taking part in it."""

    def reader(self) -> StoreLifecycle:
        """The same records, not yet open, to be read only.

        Opening it queues nothing again and ends nothing, whether or not others hold the store.
        """
        ...


class SqliteReader(BatchingStore):
    """Reads a file and changes nothing in it; a method that would write raises StoreError.

    It takes no lock on the file's ownership, so another process that opens the store may still be
    its only holder, and it ends no attempt that is overdue.
    """

    poll_interval_s = 1.0

    def __init__(self, settings: FileSettings) -> None:
        super().__init__()
        self._settings = settings

    async def connect(self) -> bool:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-store-reader")
        try:
            self._reading = await self._in_thread(self._connect)
        except StoreError:
            self._thread.shutdown()
            raise
        return False

    def _connect(self) -> sqlite3.Connection:
        with store_errors(self._settings):
            return connect_existing(self._settings, mode="ro")

    async def disconnect(self) -> None:
        await self._in_thread(self._reading.close)
        self._thread.shutdown()

    def submit(self, operation: Callable[[Operations], T], *, rows: float = math.inf) -> NoReturn:
        del operation, rows
        raise StoreError(
            f"The store in {self._settings.path} was opened for reading: open it with open() to "
            f"change it"
        )

    async def _sweep(self) -> float:
        """Nothing is ever due: those who take part end what is overdue."""
        return math.inf

    async def _restart_timers(self) -> None:
        """Leases are theirs, too."""

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        del rows
        return await self._in_thread(lambda: look_up(self._reading, self._settings, query))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def look_up(
    connection: sqlite3.Connection, settings: FileSettings, query: Callable[[Records], T]
) -> T:
    """Read at one point in time.

    Raises:
        StoreError: the file cannot be read.
    """
    with store_errors(settings):
        connection.execute("BEGIN")
        try:
            return query(SqlRecords(connection))
        finally:
            roll_back(connection)


def connect_existing(settings: FileSettings, *, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Connect to a file that is a store already; it is not created.

    Raises:
        StoreError: there is no file, or it is no store that this version reads.
    """
    path = settings.path
    if not path.is_file():
        raise StoreError(f"There is no store in {path}: the file does not exist")
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=settings.busy_timeout_s,
        isolation_level=None,
    )
    try:
        _check_schema(connection, settings)
        connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    except (sqlite3.Error, StoreError):
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, settings: FileSettings) -> None:
    rows = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema'")
    if rows.fetchone() is None:
        raise StoreError(f"{settings.path} is no store: it has no table of agl-core's")
    (version,) = connection.execute("SELECT version FROM schema").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{settings.path} was written by a newer agl-core (schema {version}, this one reads "
            f"up to {SCHEMA_VERSION}): upgrade agl-core"
        )
