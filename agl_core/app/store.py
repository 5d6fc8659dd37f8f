"""A store process: the run's records, whose trainer, gateway and runners are elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from agl_core.config import StoreConfig
from agl_core.config.loader import RESOLVED, load_config
from agl_core.plugins import PluginManager
from agl_core.serving import shared_key
from agl_core.store.locate import described, store_options
from agl_core.store.options import STORE_FILE, SqliteOptions
from agl_core.store.server import StoreServer
from agl_core.store.sqlite import SqliteStore


def store_file(target: str, plugins: PluginManager) -> Path:
    """The database file that a user means by a file or a run's directory, whether or not it exists.

    A run whose records a server keeps means the default store's file in its directory: that of the
    server.

    Raises:
        ConfigError: the run's configuration cannot be read.
    """
    path = Path(target).expanduser()
    if not path.is_dir():
        return path
    resolved = path / RESOLVED
    config = load_config(resolved).store if resolved.is_file() else StoreConfig()
    kept = described(store_options(config, plugins)).file(path)
    return kept or path / STORE_FILE


async def serve_store(
    options: SqliteOptions, *, host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Serve a file until cancelled; attempts that ran when it was last served go on.

    Args:
        options: Of the file, which is created if there is none.
        host: Address to listen on.
        port: 0 for one that the system chooses.
        ready: Told the address once calls are taken.

    Raises:
        ConfigError: there is no shared key, or the address is taken.
        StoreError: the file cannot be used.
    """
    store = SqliteStore(
        options.file(Path()),
        synchronous=options.synchronous,
        busy_timeout_s=options.busy_timeout_s,
        retention=options.retention,
        orphans="keep",
    )
    server = StoreServer(store, key=shared_key(), host=host, port=port)
    await server.start()
    try:
        ready(server.url)
        await asyncio.Event().wait()
    finally:
        await server.stop()
