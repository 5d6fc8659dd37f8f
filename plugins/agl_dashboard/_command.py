"""The command ``agl dashboard``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from agl_core.cli.group import CliState, debug_option, host_option, plugin_option
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager

_PORT: Final = 8080


@click.command()
@click.argument("target", metavar="[DIR|STORE]", default="agl_runs")
@host_option
@click.option("--port", default=_PORT, show_default=True, help="0: one the system chooses.")
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
@plugin_option
@debug_option
@click.pass_obj
def command(
    state: CliState, *, target: str, host: str, port: int, index: Path | None, **options: Any
) -> None:
    """Show runs in a browser while they run and afterwards.

    DIR is a folder of runs, such as agl_runs, or one run's directory; STORE is a store's file or
    address. The run is never changed. Beyond this machine (--host 0.0.0.0) a key is needed: that in
    AGL_API_KEY, or else one that is printed as a part of the address.
    """
    from agl_core.app import run_blocking  # noqa: PLC0415

    def ready(url: str) -> None:
        click.echo(f"Dashboard of {target} at {url}  (Ctrl+C stops it)")
        if options["opens"]:
            click.launch(url)

    run_blocking(
        serve(
            target,
            state.plugins(),
            listen=(host, port),
            index=index or default_index(),
            ready=ready,
            writing=(options["write"], options["marks"]),
        )
    )


async def serve(
    target: str,
    plugins: PluginManager,
    *,
    listen: tuple[str, int],
    index: Path,
    ready: Callable[[str], None],
    writing: tuple[bool, Path | None] = (False, None),
) -> None:
    """Serve the dashboard until cancelled.

    Args:
        target: A folder of runs, a run's directory, a store's file or address.
        plugins: The loaded plugins.
        listen: Host and port; port 0 chooses a free one.
        index: Folder for indexes.
        ready: Called with the address once connections are accepted; it may have a key.
        writing: Whether people may mark calls, and the file of a store's marks.

    Raises:
        ConfigError: there is nothing at the target, or the port is in use.
    """
    import asyncio  # noqa: PLC0415

    from agl_endpoints import key_for  # noqa: PLC0415
    from agl_stores import has_scheme  # noqa: PLC0415

    from agl_core.serving import (  # noqa: PLC0415
        GuestServer,
        address_of,
        bind,
    )
    from agl_dashboard._app import Dashboard  # noqa: PLC0415
    from agl_dashboard._sources import ShownRuns, Writing  # noqa: PLC0415

    host, port = listen
    if not has_scheme(target) and not os.path.exists(os.path.expanduser(target)):  # noqa: ASYNC240, PTH110, PTH111  before anything is served
        raise ConfigError(
            f"There is no {target!r}: name a folder of runs, a run's directory, a store's file or "
            f"its address"
        )
    key = key_for(host)
    write, marks = writing
    sources = ShownRuns(target, plugins, index, writing=Writing(write=write, file=marks))
    sources.check_marks()
    listener = bind(host, port)
    server = GuestServer(Dashboard(sources, plugins).app(key=key))
    try:
        await server.start(listener)
        url = address_of(listener)
        ready(f"{url}/?key={key}" if key else url)
        await asyncio.Event().wait()
    finally:
        await server.stop()
        await sources.close()


def default_index() -> Path:
    """Return the folder for indexes in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "agl" / "dashboard"
