"""``agl store export``."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from agl_core.cli.group import CliState
from agl_core.cli.options import debug_option, plugin_option
from agl_core.cli.output import STDOUT, writing
from agl_core.cli.store.selection import (
    filter_options,
    filters_of,
    reading,
    store_argument,
)
from agl_core.store.jsonl import export_lines
from agl_core.store.locate import locate_store


@click.command()
@store_argument
@click.option(
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default=STDOUT,
    metavar="FILE",
    help="Write to this file; standard output without it.",
)
@filter_options
@plugin_option
@debug_option
@click.pass_obj
def command(state: CliState, *, target: str, output: str, **options: Any) -> None:
    """Write a store as lines of JSON: resources, rollouts with attempts, all spans with tokens.

    Nothing is lost; agl_core.store.jsonl.read_export reads it back.
    """
    filters, address = filters_of(options), locate_store(target)

    async def work() -> int:
        lines = -2  # the head and the end
        async with reading(state, address) as store:
            with writing(output) as stream:
                async for line in export_lines(store, filters.query):
                    stream.write(line.encode() + b"\n")
                    lines += 1
        return lines

    records = asyncio.run(work())
    if output != STDOUT:
        click.echo(f"{records} records in {output}")
