"""``agl export --marks``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
from agl_records import export_marks_from, marks_of
from agl_stores import StoreAddress, has_scheme, locate_store, open_for_reading, run_directory

from agl_core.cli.group import CliState
from agl_core.cli.output import STDOUT, writing

if TYPE_CHECKING:
    from agl_records import MarksForm, MarksSummary


def export_marked(
    state: CliState, target: str, form: MarksForm, *, output: str, file: Path | None
) -> None:
    """Write marked calls, and on standard error what was left out, by cause.

    Raises:
        ConfigError: there is no store or no file of marks, or the output cannot be written.
        StoreError: the marks cannot be read.
    """
    plugins = state.plugins()
    there = has_scheme(target) or Path(target).expanduser().exists()
    address = locate_store(target if there else run_directory(target), plugins)
    address.check_named(f"agl export {address.url} --marks {form} --marks-file FILE")
    summary = asyncio.run(_export(state, address, form, output=output, file=file))
    where = "" if output == STDOUT else f" in {output}"
    click.echo(f"{summary.rows} rows of {summary.marks} marks{where}", err=True)
    if summary.left_out:
        counts = ", ".join(f"{cause} {count}" for cause, count in summary.left_out.items())
        click.echo(f"marks left out: {counts}", err=True)


async def _export(
    state: CliState, address: StoreAddress, form: MarksForm, *, output: str, file: Path | None
) -> MarksSummary:
    marks = marks_of(address, file).read()
    async with open_for_reading(address, state.plugins()) as store:
        with writing(output) as stream:
            return await export_marks_from(store, marks, stream, form)
