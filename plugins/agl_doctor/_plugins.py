"""``agl plugins``."""

from __future__ import annotations

import click

from agl_core.cli.group import CliState, debug_option, plugin_option
from agl_core.cli.output import console
from agl_core.plugins import PluginInfo

_STYLES = {"ok": "green", "broken": "red", "missing extra": "yellow", "disabled": "dim"}


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Show the tracebacks of broken plugins.")
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, *, verbose: bool) -> None:
    """List plugins with version and state."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = state.plugins(tolerant=True).plugins()
    table = Table("plugin", "version", "state", "registers", box=None, pad_edge=False)
    for row in rows:
        version = f"{row.distribution} {row.version}".strip() or "local file"
        state_text = Text(row.state, style=_STYLES[row.state])
        table.add_row(row.name, version, state_text, Text(_offers(row)))
    target = console()
    target.print(table)
    for row in rows:
        if row.detail and row.state != "disabled":
            target.print(f"\n{row.detail}", markup=False, soft_wrap=True)
        if verbose and row.traceback:
            target.print(row.traceback, markup=False, soft_wrap=True)


def _offers(row: PluginInfo) -> str:
    parts = [f"{kind}: {', '.join(names)}" for kind, names in row.registers.items()]
    if row.observes:
        parts.append(f"observes: {', '.join(row.observes)}")
    return "\n".join(parts)
