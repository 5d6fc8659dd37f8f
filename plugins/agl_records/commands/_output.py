"""The option ``--json`` of commands that show records."""

from __future__ import annotations

from typing import Any

import click

from agl_core.cli.output import STDOUT, writing
from agl_core.types.json_text import json_text


def write_records(value: Any, target: str) -> None:
    """Write recorded data as indented JSON, with any text and numbers that users recorded.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json_text(value, indent=2)
    if target == STDOUT:
        click.echo(text)
        return
    with writing(target, option="--json") as stream:
        stream.write(f"{text}\n".encode())
