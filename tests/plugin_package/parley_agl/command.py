"""``agl parley``."""

from __future__ import annotations

import click

from parley_agl.rank import rank_advantages


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("returns", nargs=-1, type=float, required=True)
def command(returns: tuple[float, ...]) -> None:
    """Show the advantages that the algorithm rank gives to a group with these RETURNS."""
    for value, advantage in zip(returns, rank_advantages(returns), strict=True):
        click.echo(f"{value:g}  {advantage:+.3f}")
