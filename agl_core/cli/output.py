"""Writing to consoles and files of any encoding."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

import click

from agl_core.text import escape_what_stream_lacks, json_bytes

if TYPE_CHECKING:
    from rich.console import Console

STDOUT: Final = "-"

_FILE_WIDTH: Final = 240
"""Columns of what is no terminal: nothing that a pipe or a file receives is cut to 80."""


def tolerate_any_console() -> None:
    """Escape what a console's encoding lacks instead of failing on it.

    A console of code page 1252 has no box drawing, emoji or most alphabets; none of them may end
    a run.
    """
    for stream in (sys.stdout, sys.stderr):
        escape_what_stream_lacks(stream)


class _WarningsHandler(logging.Handler):
    """Writes to standard error, unless the program being run has set up logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            click.echo(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


@contextmanager
def warnings_shown() -> Generator[None, None, None]:
    """Show agl-core's warnings on standard error while a command runs."""
    logger, handler = logging.getLogger("agl_core"), _WarningsHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or error as they are now."""
    from rich.console import Console  # noqa: PLC0415

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return Console(file=stream, highlight=False, width=width)


def progress_stream(json_file: str | None) -> TextIO:
    """Return standard output, or standard error if ``--json -`` writes to standard output."""
    return sys.stderr if json_file == STDOUT else sys.stdout


def supports_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def write_json(value: Any, target: str) -> None:
    """Write records as indented JSON, UTF-8 in a file and ASCII on standard output.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json_bytes(value, indent=2)
    if target == STDOUT:
        click.echo(json.dumps(json.loads(text), indent=2))
        return
    with writing(target, option="--json") as stream:
        stream.write(text + b"\n")


@contextmanager
def writing(target: str, *, option: str = "--output") -> Generator[BinaryIO, None, None]:
    """A file to write, or standard output for ``-``; a failure leaves no half-written file.

    Raises:
        ConfigError: the file cannot be written.
    """
    if target == STDOUT:
        yield sys.stdout.buffer
        return
    from agl_core.store import whole_file  # noqa: PLC0415

    with whole_file(target, what=option) as stream:
        yield stream
