"""The connection that waits for notifications, and shows that this process has the store open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from agl_core.clocks import new_id
from agl_core.errors import StoreError
from agl_core.store import Changes
from agl_postgres._connect import Server, connection_errors
from agl_postgres._rows import SyncConnection

_log = logging.getLogger(__name__)

_LARGEST: Final = 7_000
"""Bytes of a notification; PostgreSQL takes less than 8,000."""
_OWNERS: Final = 4_740_332
"""Class of the advisory locks of processes that have a store open; their number is the schema's."""
_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]


class Listener:
    """A connection with ``LISTEN``, outside the pool, opened again whenever it is lost.

    PostgreSQL keeps no notification for a client that does not listen, so after a reconnect the
    store is asked to read again what its callers wait for.

    The connection holds a shared advisory lock. A process that gets the exclusive one is the only
    one with the store open, so attempts that run are left over from a crash. The server releases
    the lock whenever the process ends.
    """

    def __init__(
        self,
        server: Server,
        *,
        announce: Callable[[Changes], None],
        read_again: Callable[[], Awaitable[None]],
    ) -> None:
        """Build a listener.

        Args:
            server: The server, by an address that passes notifications on.
            announce: Called on the loop with the changes of another process.
            read_again: Called after notifications may have been lost.
        """
        self._server = server
        self._announce = announce
        self._read_again = read_again
        self._instance = new_id("st")
        self._channel = ""
        self._schema = 0
        self._owner = False
        self._connection: AsyncConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self.reconnects = 0
        """How often the connection was opened again."""

    async def start(self, *, owner: bool) -> bool:
        """Connect and listen; return True if no other process has the store open.

        `share` must follow then, because other processes that open the store wait for it. `listen`
        follows in any case.

        Args:
            owner: Whether to show other processes that this one has the store open.

        Raises:
            StoreError: the server refused, or another process opens the store for too long.
        """
        with connection_errors(self._server.shown):
            self._connection = connection = await self._connect()
            alone = owner and await self._first(connection)
            if owner and not alone:
                await self._take_share(connection)
        return alone

    async def share(self) -> None:
        """Let other processes open the store."""
        connection = self._connection
        if connection is not None:
            with connection_errors(self._server.shown):
                await self._take_share(connection)
                await connection.execute(
                    "SELECT pg_advisory_unlock(%s, %s)", [_OWNERS, self._schema]
                )

    def listen(self) -> None:
        """Pass notifications on from now; those since `start` are not lost."""
        # While it waits for notifications, the connection takes no other statement.
        self._task = asyncio.create_task(self._listen(), name="agl-store-listener")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def notify(self, connection: SyncConnection, changes: Changes) -> None:
        """Add notifications of a transaction's changes to it; they are sent when it commits."""
        for payload in payloads(self._instance, changes):
            connection.execute("SELECT pg_notify(%s, %s)", [self._channel, payload])

    async def _connect(self) -> AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(
            **self._server.parameters, autocommit=True
        )
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prepare(self, connection: AsyncConnection) -> None:
        found = await connection.execute(
            "SELECT current_schema(), set_config('lock_timeout', %s, FALSE), "
            "set_config('tcp_keepalives_idle', '30', FALSE), "
            "set_config('tcp_keepalives_interval', '10', FALSE), "
            "set_config('tcp_keepalives_count', '3', FALSE)",
            [f"{round(1000 * self._server.lock_timeout_s)}ms"],
        )
        (schema, *_) = (await found.fetchall())[0]
        self._schema = zlib.crc32(str(schema).encode()) - 2**31
        self._channel = f"agl_store_{self._schema + 2**31:08x}"
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))

    async def _first(self, connection: AsyncConnection) -> bool:
        found = await connection.execute(
            "SELECT pg_try_advisory_lock(%s, %s)", [_OWNERS, self._schema]
        )
        return (await found.fetchall())[0][0]

    async def _take_share(self, connection: AsyncConnection) -> None:
        await connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", [_OWNERS, self._schema])
        self._owner = True

    async def _listen(self) -> None:
        """Pass notifications on until cancelled."""
        pause_s = _PAUSE_S
        while True:
            try:
                if self._connection is None:
                    await self._reconnect()
                    pause_s = _PAUSE_S
                connection = self._connection
                if connection is not None:
                    async for notification in connection.notifies():
                        await self._receive(notification.payload)
            except (psycopg.Error, StoreError) as error:
                await self._lost(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _lost(self, error: Exception) -> None:
        if self._connection is not None:
            _log.warning(
                "No notifications from %s, trying again: %s",
                self._server.shown.address,
                self._server.shown.clean(error),
            )
            connection, self._connection = self._connection, None
            await connection.close()

    async def _reconnect(self) -> None:
        connection = await self._connect()
        try:
            if self._owner:
                await self._take_share(connection)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self.reconnects += 1
        await self._read_again()

    async def _receive(self, payload: str) -> None:
        try:
            given = json.loads(payload)
            queued = max(0, int(given["queued"]))
            final = [one for one in given["final"] if isinstance(one, str)]
            own = given["from"] == self._instance
        except (ValueError, TypeError, KeyError, OverflowError):
            return  # anyone who may connect can send notifications
        if own:
            return
        self._announce(Changes(queued=queued, final=final))
        if given.get("again"):
            await self._read_again()


def payloads(instance: str, changes: Changes) -> Iterator[str]:
    """Yield the texts of notifications, in ASCII, each short enough for PostgreSQL."""
    queued = changes.queued
    long = [one for one in changes.final if len(json.dumps(one)) > _LARGEST]
    pieces = list(_pieces([one for one in changes.final if one not in long]))
    for final in pieces or ([[]] if queued or long else []):
        message = {"from": instance, "queued": queued, "final": final}
        yield json.dumps({**message, "again": True} if long else message)
        queued = 0


def _pieces(ids: Sequence[str]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for one in ids:
        length = len(json.dumps(one)) + 2
        if piece and size + length > _LARGEST:
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += length
    if piece:
        yield piece
