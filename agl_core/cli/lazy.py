"""A command made of subcommands, each in a file of its own that is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Subcommands by name: ``module.command`` of the group's package, with a one-line summary."""

    def __init__(
        self, *args: Any, package: str = "", subcommands: Mapping[str, str] | None = None, **kw: Any
    ) -> None:
        """Build the group.

        Args:
            args: Of `click.Group`.
            package: Where each subcommand has a module of its name, with the attribute `command`.
            subcommands: Name to summary.
            kw: Of `click.Group`.
        """
        super().__init__(*args, **kw)
        self._package = package
        self._summaries = dict(subcommands or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self._summaries:
            return None
        return import_module(f"{self._package}.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List subcommands by their summary; none of them is imported."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self._summaries.items()))
