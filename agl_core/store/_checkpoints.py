"""Moving what was committed from the write-ahead log into the file, while commits go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from agl_core.store._schema import FileSettings, connect

_log = logging.getLogger(__name__)

_ROWS: Final = 512
"""Written since the last checkpoint: enough for another."""


class Checkpoints:
    """Checkpoints in a thread and on a connection of their own.

    A checkpoint waits for the disk. SQLite would make the commit wait that finds the log long; one
    that runs beside the commits leaves them little to do when the log reaches its limit.
    """

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-store-checkpoints")
        self._rows = 0.0
        self._running: asyncio.Future[None] | None = None
        self._stopped = False

    def written(self, rows: float) -> None:
        """Learn that about so many rows were committed."""
        self._rows += rows
        if self._running is None:
            self._begin()

    def _begin(self) -> None:
        if self._rows >= _ROWS and not self._stopped:
            self._rows = 0.0
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._thread, self._checkpoint)
            self._running.add_done_callback(self._end)

    def _end(self, checkpoint: asyncio.Future[None]) -> None:
        del checkpoint
        self._running = None
        self._begin()

    async def stop(self) -> None:
        """Wait for the one that runs; no other is begun. Closing the file makes the last one."""
        self._stopped = True
        if self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    def _checkpoint(self) -> None:
        try:
            with contextlib.closing(connect(self._settings)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            # The log stays longer, nothing else: it is read until it can be moved.
            _log.warning("No checkpoint of %s: %s", self._settings.path, error)
