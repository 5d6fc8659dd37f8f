"""The command ``agl store serve``."""

from __future__ import annotations

from typing import Literal

import click
from agl_endpoints import tls_options

from agl_core.cli.group import CliState, debug_option, host_option, port_option


@click.command()
@click.argument("path", default="store.db")
@host_option
@port_option
@tls_options
@click.option(
    "--retention",
    type=click.Choice(["keep", "drop_spans"]),
    default="keep",
    show_default=True,
    help="What becomes of a rollout's spans once it was trained on.",
)
@click.option(
    "--synchronous",
    type=click.Choice(["normal", "full"]),
    default="normal",
    show_default=True,
    help="full also survives a power cut; normal survives a crash of the program.",
)
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    path: str,
    host: str,
    port: int,
    retention: Literal["keep", "drop_spans"],
    synchronous: Literal["normal", "full"],
) -> None:
    """Serve a store to the trainer, gateway and runners of other processes.

    PATH is the database file, which is created if there is none, or a run's directory; store.db in
    the working directory when left out. AGL_API_KEY holds the key that all of them share. Give them the
    printed address, as store.url in the configuration.

    It may be killed and started again at any time: its clients continue where they were.
    """
    from agl_stores import store_file  # noqa: PLC0415

    from agl_core.app import run_blocking  # noqa: PLC0415
    from agl_core.store import SqliteOptions  # noqa: PLC0415
    from agl_remote._process import rare_collections, serving_loop  # noqa: PLC0415
    from agl_remote._store_server import serve_store  # noqa: PLC0415

    file = store_file(path, state.plugins())
    options = SqliteOptions(path=str(file), retention=retention, synchronous=synchronous)

    def ready(url: str) -> None:
        click.echo(f"Serving store {file} at {url}")

    with rare_collections():
        served = serve_store(options, host=host, port=port, ready=ready)
        run_blocking(served, new_loop=serving_loop)
