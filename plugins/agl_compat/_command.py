"""``agent-lightning``, and ``agl compat``, which trains from an older file."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from agl_compat._names import renamed
from agl_core.cli import main as agl
from agl_core.cli.group import set_option
from agl_core.config import read_anchored
from agl_core.errors import ConfigError


@click.command()
@click.argument("file", required=False)
@click.option("--config", "config_file", metavar="FILE", help="The file, by name.")
@set_option
def command(file: str | None, config_file: str | None, overrides: tuple[str, ...]) -> None:
    """Train from a file with the sections agent, training and environment."""
    from agl_compat._file import train_file  # noqa: PLC0415

    if (file is None) == (config_file is None):
        raise click.UsageError("Name one file: agl compat FILE, or agl compat --config FILE")
    settings = dict(_parsed(text) for text in overrides)
    click.echo(train_file(file or config_file or "", settings).summary())


def main() -> None:
    """Run ``agl`` under its older name; ``train`` also takes files with the older sections."""
    renamed("The command agent-lightning", "agl")
    if sys.argv[1:2] == ["train"] and any(map(_is_older, sys.argv[2:])):
        sys.argv[1] = "compat"
    agl()


def _is_older(argument: str) -> bool:
    from agl_compat._file import is_older  # noqa: PLC0415

    file = Path(argument.removeprefix("--config="))
    if file.suffix.lower() not in (".yaml", ".yml", ".toml", ".json") or not file.is_file():
        return False
    try:
        return is_older(read_anchored(file))
    except ConfigError:  # `agl train` says what is wrong with the file
        return False


def _parsed(text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"--set {text!r}: write KEY=VALUE")
    try:
        return key, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return key, value
