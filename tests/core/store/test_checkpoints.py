"""Checkpoints beside the commits."""

from __future__ import annotations

import contextlib
import math
import threading

from agl_testing._store_samples import begin_all

from agl_core.store._sql import FileSettings, connect
from agl_core.store._sqlite import SqliteStore, _File
from agl_core.store._writer import WalCheckpointer


async def test_what_is_told_after_the_end_begins_no_checkpoint(tmp_path):
    """The writer's last deliveries come when its helpers have ended."""
    settings = FileSettings(path=tmp_path / "s.db", synchronous="normal", busy_timeout_s=1.0)
    checkpoints = WalCheckpointer(settings)
    await checkpoints.stop()
    checkpoints.written(math.inf)
    assert checkpoints._running is None


async def test_a_store_closes_its_file_after_a_running_checkpoint(tmp_path, monkeypatch):
    """Of two connections that close at the same time, neither empties the log."""
    closing, overtaken, close = threading.Event(), [], _File.close

    def checkpoint(self):
        with contextlib.closing(connect(self._settings)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            overtaken.append(closing.wait(0.2))

    def closed(self, connection):
        closing.set()
        close(self, connection)

    monkeypatch.setattr(WalCheckpointer, "_checkpoint", checkpoint)
    monkeypatch.setattr(_File, "close", closed)
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await begin_all(store, 1)
    store._writer._checkpoints.written(math.inf)
    await store.close()
    assert overtaken == [False]
    assert not (tmp_path / "store.db-wal").exists()
