"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import click

from agl_core.cli.group import CliState


def _debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(CliState).debug = True


def _plugins(ctx: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    ctx.ensure_object(CliState).files += value


set_option: Any = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one key, such as algorithm.lr=1e-6; may be repeated.",
)
plugin_option: Any = click.option(
    "--plugin",
    multiple=True,
    metavar="FILE",
    expose_value=False,
    callback=_plugins,
    help="Load a local plugin file; may be repeated.",
)
json_option: Any = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write the figures to this file as JSON; - writes to standard output.",
)
debug_option: Any = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show tracebacks."
)
host_option: Any = click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
)
port_option: Any = click.option(
    "--port", default=0, show_default=True, help="0: one the system chooses."
)
