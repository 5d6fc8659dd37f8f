"""``agl store copy``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import click
from agl_stores import (
    CopiedKind,
    StoreAddress,
    bare_store_at,
    copy_store,
    locate_store,
    new_store,
)

from agl_core.cli.group import CliState, debug_option, json_option, plugin_option
from agl_core.cli.output import STDOUT, console
from agl_core.errors import ConfigError, StoreError
from agl_core.store import BaseStore, Readable
from agl_records.commands._output import write_records

_DIGITS = 12


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--run", "run_id", metavar="NAME", help="Copy this run only, with its resources.")
@click.option("--live", is_flag=True, help="Copy what FROM has until now, though it is trained on.")
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    source: str,
    target: str,
    run_id: str | None,
    live: bool,
    json_file: str | None,
) -> None:
    """Copy all records of a store into another one, and compare the two.

    FROM and TO are run directories, configurations, database files or addresses. TO may be a file
    or directory that does not exist yet. FROM does not change; what TO has besides stays.
    An interrupted copy is completed by the same command. Attempts that are running are copied as
    lost, and their rollouts as queued.
    """
    plugins = state.plugins()
    origin, place = locate_store(source, plugins), new_store(target, plugins)
    origin.check_named()
    place.check_named()
    if _same(origin, place):
        raise ConfigError(f"FROM and TO are the same store, {target!r}: name two")

    async def work() -> list[CopiedKind]:
        # Without layers: what is encrypted is copied so.
        reader, store = bare_store_at(origin, plugins), bare_store_at(place, plugins)
        if isinstance(reader, Readable):
            reader = reader.reader()
        if not isinstance(store, BaseStore):
            raise ConfigError(
                f"Store {place.config.name!r} takes no copies: give the address or the file of the "
                f"store that the server keeps"
            )
        await reader.open()
        try:
            await store.open()
            try:
                return await copy_store(reader, store, run_id=run_id, live=live)
            finally:
                await store.close()
        finally:
            await reader.close()

    copied = asyncio.run(work())
    if json_file is not None:
        write_records(
            {each.kind: {**asdict(each), "same": each.same} for each in copied}, json_file
        )
    if json_file != STDOUT:
        _show(copied)
    differing = [each.kind for each in copied if not each.same]
    if differing:
        raise StoreError(
            f"{target!r} has other {', '.join(differing)} than were copied into it: another "
            f"process changes that store; end it and copy into a new one"
        )


def _same(one: StoreAddress, other: StoreAddress) -> bool:
    if one.file is not None and other.file is not None:
        return one.file.resolve() == other.file.resolve()
    return one.url is not None and one.url == other.url


def _show(copied: Sequence[CopiedKind]) -> None:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in ("", "FROM", "TO", "copied now", "SHA-256 of FROM", "of TO", ""):
        table.add_column(name, justify="right" if name in ("FROM", "TO", "copied now") else "left")
    for each in copied:
        table.add_row(
            each.kind,
            str(each.source),
            str(each.destination),
            str(each.destination - each.before),
            each.digest[:_DIGITS],
            each.digest_destination[:_DIGITS],
            "same" if each.same else "DIFFERS",
        )
    console().print(table)
