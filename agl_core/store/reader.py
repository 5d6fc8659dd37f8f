"""Read-only access to a store's file."""

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
    """A store that can be opened for reading only."""

    def reader(self) -> StoreLifecycle:
        """Return a read-only store, not yet open, with the same records.

        Opening it neither queues rollouts again nor ends attempts, whether or not other processes
        have the store open.
        """
        ...


class SqliteReader(BatchingStore):
    """A store that reads a file without changing it; methods that write raise StoreError.

    It takes no lock on ``-owners``, so another process can still open the store exclusively. It
    does not end overdue attempts.
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
        """Return infinity, because processes that can write end overdue attempts."""
        return math.inf

    async def _restart_timers(self) -> None:
        """Do nothing: processes that can write restart leases and deadlines."""

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        del rows
        return await self._in_thread(lambda: look_up(self._reading, self._settings, query))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def look_up(
    connection: sqlite3.Connection, settings: FileSettings, query: Callable[[Records], T]
) -> T:
    """Run a query on a consistent snapshot.

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
    """Connect to the file of an existing store.

    Raises:
        StoreError: the file does not exist, or is not a store that this version reads.
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
