"""The ``agl`` program: one file per command, imported when it is called."""

from __future__ import annotations


def main() -> None:
    """Run ``agl`` with the arguments of the process."""
    from agl_core.cli.group import cli  # noqa: PLC0415

    cli.main(prog_name="agl")
