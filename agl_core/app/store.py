"""A store process: the run's records, whose trainer, gateway and runners are elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from agl_core.config import StoreConfig
from agl_core.config.loader import RESOLVED, load_config
from agl_core.serving.keys import shared_key
from agl_core.store.locate import STORE_FILE
from agl_core.store.server import StoreServer
from agl_core.store.sqlite import SqliteStore


def store_file(target: str) -> Path:
    """The database file that a user means by a file or a run's directory, whether or not it is there.

    A run whose records a server keeps means the file in its directory: that server's.

    Raises:
        ConfigError: the run's configuration cannot be read.
    """
    path = Path(target).expanduser()
    if not path.is_dir():
        return path
    resolved = path / RESOLVED
    kept = load_config(resolved).store.path if resolved.is_file() else None
    return Path(kept or path / STORE_FILE)


async def serve_store(
    config: StoreConfig, *, host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Serve a file until cancelled; attempts that ran when it was last served go on.

    Args:
        config: Of the file, which is made where there is none.
        host: Address to listen on.
        port: 0 for one that the system chooses.
        ready: Told the address once calls are taken.

    Raises:
        ConfigError: there is no shared key, or the address is taken.
        StoreError: the file cannot be used.
    """
    store = SqliteStore(
        config.path or STORE_FILE,
        synchronous=config.synchronous,
        busy_timeout_s=config.busy_timeout_s,
        retention=config.retention,
        orphans="keep",
    )
    server = StoreServer(store, key=shared_key(), host=host, port=port)
    await server.start()
    try:
        ready(server.url)
        await asyncio.Event().wait()
    finally:
        await server.stop()
