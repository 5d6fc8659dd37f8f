"""``agl store export``."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from agl_stores import StoreAddress

from agl_core.cli.group import CliState, debug_option, plugin_option
from agl_core.cli.output import STDOUT, writing
from agl_core.errors import ConfigError
from agl_core.interfaces import Exporter, Sent
from agl_records.commands._selection import (
    Filters,
    filter_options,
    filters_of,
    located,
    reading,
    store_argument,
)
from agl_records.jsonl import export_lines


@click.command()
@store_argument
@click.option(
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write to this file; standard output without it.",
)
@click.option(
    "--otlp", metavar="URL", help="Send traces to this OTLP/HTTP collector instead of writing."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --otlp: send this header too; may be repeated.",
)
@click.option("--content", is_flag=True, help="With --otlp: also send what was asked and answered.")
@filter_options
@plugin_option
@debug_option
@click.pass_obj
def command(
    state: CliState, *, target: str, output: str | None, otlp: str | None, **options: Any
) -> int:
    """Write a store as lines of JSON: resources, rollouts with attempts, all spans with tokens.

    Nothing is lost; agl_records.jsonl.read_export reads it back. With --otlp the ended attempts
    go to a collector as OpenTelemetry traces, without tokens.
    """
    headers, content = _headers(options.pop("headers")), bool(options.pop("content"))
    filters, address = filters_of(options), located(state, target)
    if otlp is not None:
        if output is not None:
            raise ConfigError("Give either --otlp or --output, not both")
        sent = asyncio.run(_send(state, address, otlp, filters, headers, content))
        return _report(sent, otlp)
    if headers or content:
        raise ConfigError("--header and --content are for a collector: give --otlp URL too")
    target_file = output or STDOUT
    records = asyncio.run(_write(state, address, filters, target_file))
    if target_file != STDOUT:
        click.echo(f"{records} records in {target_file}")
    return 0


async def _write(state: CliState, address: StoreAddress, filters: Filters, output: str) -> int:
    """Write the lines; return the number of records."""
    lines = -2  # the first and last line are not records
    async with reading(state, address) as store:
        with writing(output) as stream:
            async for line in export_lines(store, filters.query):
                stream.write(line.encode() + b"\n")
                lines += 1
    return lines


async def _send(
    state: CliState,
    address: StoreAddress,
    endpoint: str,
    filters: Filters,
    headers: dict[str, str],
    content: bool,
) -> Sent:
    send: Exporter = state.plugins().registry("exporters").resolve("otlp")
    async with reading(state, address) as store:
        return await send(store, endpoint, query=filters.query, headers=headers, content=content)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"Cannot read --header {text!r}: write NAME=VALUE")
        headers[name.strip()] = value
    return headers


def _report(sent: Sent, endpoint: str) -> int:
    """Report what was sent; return 1 if the collector rejected a part of it."""
    click.echo(f"sent {sent.spans} spans of {sent.attempts} attempts to {endpoint}")
    if sent.running:
        click.echo(f"left out {sent.running} attempts that have not ended")
    if sent.rejected:
        reasons = "; ".join(dict.fromkeys(sent.reasons))
        click.echo(f"the collector rejected {sent.rejected} spans: {reasons}", err=True)
    return int(bool(sent.rejected))
