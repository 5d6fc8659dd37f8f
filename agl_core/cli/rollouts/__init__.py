"""``agl rollouts``: what the rollouts of a run are good for. One file per subcommand."""

from __future__ import annotations

from typing import Final

import click

from agl_core.cli.lazy import LazyGroup

SUBCOMMANDS: Final = {
    "export": "write what agents said and earned as training data",
}


@click.command(cls=LazyGroup, package=__name__, subcommands=SUBCOMMANDS)
def command() -> None:
    """Use a run's rollouts elsewhere."""
