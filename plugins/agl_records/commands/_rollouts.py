"""``agl rollouts``."""

from __future__ import annotations

import click

from agl_core.cli.group import Subcommands


@click.command(name="rollouts", cls=Subcommands)
def command() -> None:
    """Export a run's rollouts."""
