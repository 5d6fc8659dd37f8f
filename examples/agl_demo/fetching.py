"""``agl fetch``: downloads a model's weights by name."""

from __future__ import annotations

from pathlib import Path

import click

from agl_core.cli.group import CliState, debug_option, plugin_option


@click.command(short_help="Fetch the weights of a model that a run file may name.")
@click.argument("name")
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, *, name: str) -> None:
    """Fetch the weights that plugins offer as NAME, such as smollm2, and print their directory.

    Those that are there already are not fetched again. A run file takes the same name as its model.
    """
    directory: Path = state.plugins().registry("models").create(name, click.echo)
    click.echo(f"{name} is in {directory}")
    click.echo(f'In a run file: model = "{name}"')
