"""``agl gateway``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from agl_endpoints import SERVER_TLS, ca_option, tls_options
from agl_stores import has_scheme, locate_store, make_store_at, of_file, store_file

from agl_core import waits
from agl_core.app import check_sections, gateway_server
from agl_core.cli.group import CliState, debug_option, host_option, port_option
from agl_core.config import RESOLVED, RunConfig, load_config
from agl_core.errors import ConfigError, StoreError
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.interfaces import StoreLifecycle
from agl_core.plugins import PluginManager
from agl_core.serving import shared_key, tls_context
from agl_remote._gateway_control import GatewayControl

_HOST_AND_PORT: Final = re.compile(r"[^/\\]+:\d+")


@click.command()
@click.option(
    "--store",
    required=True,
    metavar="URL",
    help="Where records go: the address that agl store serve prints, or a store's file.",
)
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="A run file: its [limits] count here, and tls_cert and tls_key of [gateway].",
)
@host_option
@port_option
@tls_options
@ca_option
@debug_option
@click.pass_obj
def command(state: CliState, *, store: str, file: str | None, host: str, port: int) -> None:
    """Serve the model calls of a training whose trainer and runners are other processes.

    AGL_API_KEY holds the key that store, gateway, trainer and runners share. Give trainer and
    runners the printed address as gateway.url; the trainer says which models are served.
    """
    from agl_core.app import run_blocking  # noqa: PLC0415
    from agl_remote._process import rare_collections, serving_loop  # noqa: PLC0415

    def ready(url: str) -> None:
        click.echo(f"Serving gateway at {url}")

    with rare_collections():
        config = load_config(file) if file is not None else None
        plugins = state.plugins(config.plugins if config is not None else ())
        if config is not None:
            check_sections(config, plugins)
            plugins.observe("agl_config_resolved", config=config)
        opened = store_of(store, plugins)
        served = serve_gateway(opened, plugins, config, host=host, port=port, ready=ready)
        run_blocking(served, new_loop=serving_loop)


def store_of(target: str, plugins: PluginManager) -> StoreLifecycle:
    """Return the store at an address or in a file that processes share, without opening it.

    Args:
        target: A target of `locate_store`, or a file or directory without a store.
        plugins: The loaded plugins, without the plugin files of a run.

    Raises:
        ConfigError: the target is an address without ``http://``, or there is no shared key for it;
            or it is a run whose store cannot be shared or does not exist.
    """
    of_a_run = (Path(target).expanduser() / RESOLVED).is_file()
    if not of_a_run and not has_scheme(target):
        file = store_file(target, plugins)
        if not file.exists():
            if _HOST_AND_PORT.fullmatch(target):
                raise ConfigError(
                    f"There is no store file {target!r}: an address is http://{target}"
                )
            return make_store_at(of_file(file, plugins), plugins)
    return make_store_at(locate_store(target, plugins), plugins)


async def serve_gateway(
    store: StoreLifecycle,
    plugins: PluginManager,
    config: RunConfig | None = None,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
) -> None:
    """Serve until cancelled; attempts that are open then stay unsealed.

    Args:
        store: A store that is not open.
        plugins: The loaded plugins, for their routes and dialects.
        config: Its sections choose the checks of model requests.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        ready: Called with the address when the gateway accepts calls.

    Raises:
        ConfigError: there is no shared key, the store refuses it, or the address is in use.
        StoreError: the store cannot be reached, or remaining records could not be written.
    """
    key = shared_key()
    tls = SERVER_TLS.get()
    if tls is None and config is not None:
        tls = tls_context(config.gateway.tls_cert, config.gateway.tls_key)
    options = GatewayOptions(
        host=host, port=port, tls=tls, secret=key, operator_key=key, restartable=True
    )
    gateway = gateway_server(store, options, plugins, config)
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
