"""``agl store``: its subcommands are registered as ``store.<name>``."""

from __future__ import annotations

import click

from agl_core.cli.group import Subcommands


@click.command(name="store", cls=Subcommands)
def command() -> None:
    """Serve, list, show, copy, delete and export a run's records.

    STORE is a run's directory, a configuration, a database file or an http:// address. Listing and
    showing change nothing; the run may be active.
    """
