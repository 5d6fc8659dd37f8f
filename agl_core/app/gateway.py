"""Servers as separate processes: a run's gateway, and a backend for any OpenAI client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agl_core import waits
from agl_core.app.parts import make_dialects, make_routes
from agl_core.builtin import load_plugins
from agl_core.config.loader import RESOLVED
from agl_core.errors import ConfigError, StoreError
from agl_core.gateway import GatewayControl, GatewayOptions, GatewayServer, translating
from agl_core.interfaces import Backend, StoreLifecycle
from agl_core.plugins import PluginManager
from agl_core.serving import OpenAIServer, shared_key
from agl_core.store import is_address, locate_store, make_store_at, of_file, store_file

_HOST_AND_PORT: Final = re.compile(r"[^/\\]+:\d+")


def store_of(target: str, plugins: Callable[[], PluginManager] = load_plugins) -> StoreLifecycle:
    """Return the store at an address or in a file that processes share, without opening it.

    Args:
        target: A target of `locate_store`, or a file or directory without a store.
        plugins: Loads the plugins, without the plugin files of a run.

    Raises:
        ConfigError: the target is an address without ``http://``, or there is no shared key for it;
            or it is a run whose store cannot be shared or does not exist.
    """
    loaded = plugins()
    of_a_run = (Path(target).expanduser() / RESOLVED).is_file()
    if not of_a_run and not is_address(target):
        file = store_file(target, loaded)
        if not file.exists():
            if _HOST_AND_PORT.fullmatch(target):
                raise ConfigError(
                    f"There is no store file {target!r}: an address is http://{target}"
                )
            return make_store_at(of_file(file, loaded), loaded)
    return make_store_at(locate_store(target, loaded), loaded)


async def serve_gateway(
    store: StoreLifecycle,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
    plugins: Callable[[], PluginManager] = load_plugins,
) -> None:
    """Serve until cancelled; attempts that are open then stay unsealed.

    Args:
        store: A store that is not open.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        ready: Called with the address when the gateway accepts calls.
        plugins: Loads the plugins, for their routes and dialects.

    Raises:
        ConfigError: there is no shared key, the store refuses it, or the address is in use.
        StoreError: the store cannot be reached, or remaining records could not be written.
    """
    key = shared_key()
    options = GatewayOptions(host=host, port=port, secret=key, operator_key=key, restartable=True)
    loaded = plugins()
    gateway = GatewayServer(
        store, options, routes=make_routes(loaded), dialects=make_dialects(loaded)
    )
    control = GatewayControl(gateway, key)
    await store.open()
    try:
        await control.start()
        ready(gateway.url)
        await asyncio.Event().wait()
    finally:
        try:
            await _end(control, gateway)
        finally:
            await store.close()


async def _end(control: GatewayControl, gateway: GatewayServer) -> None:
    try:
        await asyncio.wait_for(control.stop(), waits.GATEWAY_RECORDS_S)
    except TimeoutError as error:
        raise StoreError(
            f"{gateway.unwritten} call records could not be written within "
            f"{waits.GATEWAY_RECORDS_S:g} s and are lost, as the store is away: their attempts "
            f"fail, and are tried again"
        ) from error


def openai_server(
    backend: Backend, *, model: str, plugins: Callable[[], PluginManager] = load_plugins
) -> OpenAIServer:
    """Return a server of chat completions and of the dialects of plugins, without starting it.

    Args:
        backend: The backend; the caller closes it.
        model: Name of the served model.
        plugins: Loads the plugins, for their dialects.
    """
    dialects = {
        f"/v1{name.partition(' ')[2]}": translating(dialect)
        for name, dialect in make_dialects(plugins()).items()
    }
    return OpenAIServer(backend, model=model, dialects=dialects)
