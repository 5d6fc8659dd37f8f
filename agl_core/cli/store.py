"""``agl store``: its subcommands are registered as ``store.<name>``."""

from __future__ import annotations

import click

from agl_core.cli.group import Subcommands


@click.command(name="store", cls=Subcommands)
def command() -> None:
    """Serve a run's records, look at them, thin them out, take them elsewhere.

    STORE is a run's directory, a configuration, a database file or an http:// address. Looking
    changes nothing, also while the run goes on.
    """
