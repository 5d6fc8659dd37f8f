"""``agl store``: serve a store, look at it, thin it out. One file per subcommand."""

from __future__ import annotations

from typing import Final

import click

from agl_core.cli.lazy import LazyGroup

SUBCOMMANDS: Final = {
    "export": "write a whole store as lines of JSON, or send it as traces",
    "gc": "delete spans that are not needed any more",
    "ls": "list rollouts, and count them by status",
    "serve": "serve a store to processes elsewhere",
    "show": "show one rollout with its attempts",
}


@click.command(cls=LazyGroup, package=__name__, subcommands=SUBCOMMANDS)
def command() -> None:
    """Serve a run's records, look at them, thin them out, take them elsewhere.

    STORE is a run's directory, a configuration, a database file or an http:// address. Looking
    changes nothing, also while the run goes on.
    """
