"""``agl gateway``."""

from __future__ import annotations

import click

from agl_core.cli.group import CliState, debug_option, host_option, port_option


@click.command()
@click.option(
    "--store",
    required=True,
    metavar="URL",
    help="Where records go: the address that agl store serve prints, or a store's file.",
)
@host_option
@port_option
@debug_option
@click.pass_obj
def command(state: CliState, *, store: str, host: str, port: int) -> None:
    """Serve the model calls of a training whose trainer and runners are other processes.

    AGL_API_KEY holds the key that store, gateway, trainer and runners share. Give trainer and
    runners the printed address as gateway.url; the trainer says which models are served.
    """
    from agl_core.app import run_blocking  # noqa: PLC0415
    from agl_core.app.gateway import serve_gateway, store_of  # noqa: PLC0415
    from agl_core.serving import rare_collections, serving_loop  # noqa: PLC0415

    def ready(url: str) -> None:
        click.echo(f"Serving gateway at {url}")

    with rare_collections():
        served = serve_gateway(
            store_of(store, state.plugins),
            host=host,
            port=port,
            ready=ready,
            plugins=state.plugins,
        )
        run_blocking(served, new_loop=serving_loop)
