"""The command ``agl dashboard``."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from agl_core.cli.group import CliState, debug_option, host_option, plugin_option
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager

if TYPE_CHECKING:
    from agl_dashboard._sources import ShownRuns

_PORT: Final = 8080
_TRIED: Final = 20
"""Ports that are tried where none was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRequest:
    """The options of the command."""

    host: str
    port: int | None
    index: Path | None
    opens: bool
    write: bool
    """Whether people may mark calls."""
    marks: Path | None
    """File of a store's marks."""
    attached: bool
    """Whether another process of agl started it: it ends with its input and prints only the address."""


@click.command()
@click.argument("target", metavar="[DIR|STORE]", default="agl_runs")
@host_option
@click.option(
    "--port",
    type=int,
    help=f"0: one the system chooses; by default {_PORT}, or the next one that is free.",
)
@click.option(
    "--index",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the indexes of stores; by default one in the user's cache.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--write", is_flag=True, help="Let people mark calls as good or bad.")
@click.option(
    "--marks",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The marks of a store; those of a run are marks.db in its directory.",
)
@click.option("--attached", is_flag=True, hidden=True)
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, *, target: str, **options: Any) -> None:
    """Show runs in a browser while they run and afterwards.

    DIR is a folder of runs, such as agl_runs, or one run's directory; STORE is a store's file or
    address. The run is never changed. Beyond this machine (--host 0.0.0.0) a key is needed: that in
    AGL_API_KEY, or else one that is printed as a part of the address.
    """
    from agl_stores import has_scheme  # noqa: PLC0415

    from agl_core.app import run_blocking  # noqa: PLC0415
    from agl_dashboard._sources import ShownRuns, Writing  # noqa: PLC0415

    request = DashboardRequest(**options)
    if not has_scheme(target) and not Path(target).expanduser().exists():
        raise ConfigError(
            f"There is no {target!r}: name a folder of runs, a run's directory, a store's file or "
            f"its address"
        )
    writing = Writing(write=request.write, file=request.marks)
    index = request.index or default_index()
    sources = ShownRuns(target, state.plugins(), index, writing=writing)
    sources.check_marks()

    def ready(url: str) -> None:
        said = url if request.attached else f"Dashboard of {target} at {url}  (Ctrl+C stops it)"
        click.echo(said)
        if request.opens:
            click.launch(url)

    run_blocking(
        serve(
            sources,
            state.plugins(),
            listener=listening(request.host, request.port),
            ready=ready,
            until_input_ends=request.attached,
        )
    )


def listening(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; None for a port takes the first free one from 8080 on, and says so.

    Raises:
        ConfigError: the port is in use, or the host is no address of this machine.
    """
    from agl_core.serving import bind  # noqa: PLC0415

    for candidate in range(_PORT, _PORT + _TRIED) if port is None else ():
        with suppress(ConfigError):
            listener = bind(host, candidate)
            if candidate != _PORT:
                click.echo(f"Port {_PORT} is in use: port {candidate} is used", err=True)
            return listener
    return bind(host, port or 0)


async def serve(
    sources: ShownRuns,
    plugins: PluginManager,
    *,
    listener: socket.socket,
    ready: Callable[[str], None],
    until_input_ends: bool = False,
) -> None:
    """Serve the dashboard until cancelled.

    Args:
        sources: What is shown; closed at the end.
        plugins: The loaded plugins.
        listener: Bound socket, which is closed at the end.
        ready: Called with the address once connections are accepted; it may have a key.
        until_input_ends: End with standard input, which another process holds open.
    """
    import asyncio  # noqa: PLC0415

    from agl_endpoints import key_for  # noqa: PLC0415

    from agl_core.serving import GuestServer, address_of  # noqa: PLC0415
    from agl_dashboard._app import Dashboard  # noqa: PLC0415

    key = key_for(listener.getsockname()[0])
    server = GuestServer(Dashboard(sources, plugins).app(key=key))
    try:
        await server.start(listener)
        url = address_of(listener)
        ready(f"{url}/?key={key}" if key else url)
        if until_input_ends:
            await asyncio.to_thread(sys.stdin.read)
        else:
            await asyncio.Event().wait()
    finally:
        await server.stop()
        await sources.close()


def default_index() -> Path:
    """Return the folder for indexes in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "agl" / "dashboard"
