"""Rows of a page as a file: lines of JSON, or CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from typing import Any, Final, Literal

from agl_core.text import json_bytes, replaced
from agl_dashboard._panel import PlainAnswer

RowsKind = Literal["jsonl", "csv"]
PlainRow = Mapping[str, Any]

_TYPES: Final = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet would run."""


def rows_kind(rest: str, name: str) -> RowsKind | None:
    """Return the kind of file that an address asks for, such as ``runs.csv``; None for none."""
    kinds: dict[str, RowsKind] = {f"{name}.jsonl": "jsonl", f"{name}.csv": "csv"}
    return kinds.get(rest)


def rows_file(
    name: str, kind: RowsKind, rows: Iterable[PlainRow] | AsyncIterable[PlainRow]
) -> PlainAnswer:
    """Return rows as a file to save; its columns in CSV are those of the first row."""
    from starlette.responses import StreamingResponse  # noqa: PLC0415

    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    pieces = _lines(rows) if kind == "jsonl" else _cells(rows)
    return StreamingResponse(pieces, media_type=_TYPES[kind], headers=headers)


async def _each(
    rows: Iterable[PlainRow] | AsyncIterable[PlainRow],
) -> AsyncGenerator[PlainRow, None]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
        return
    for row in rows:
        yield row


async def _lines(rows: Iterable[PlainRow] | AsyncIterable[PlainRow]) -> AsyncGenerator[bytes, None]:
    async for row in _each(rows):
        yield json_bytes(row) + b"\n"


async def _cells(rows: Iterable[PlainRow] | AsyncIterable[PlainRow]) -> AsyncGenerator[bytes, None]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    names: list[str] = []
    async for row in _each(rows):
        if not names:
            names = [*row]
            writer.writerow(names)
        writer.writerow([_cell(row.get(name)) for name in names])
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()


def _cell(value: Any) -> Any:
    """Return a cell; a text that a spreadsheet would run begins with an apostrophe."""
    if value is None or isinstance(value, bool | int | float):
        return value
    shown = replaced(value if isinstance(value, str) else json_bytes(value).decode())
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
