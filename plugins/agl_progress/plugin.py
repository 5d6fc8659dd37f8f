"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_displays(register: Register) -> None:
    register(
        "progress",
        "agl_progress._display:progress",
        summary="a panel on a terminal, one line per step in pipes and files",
    )
    register(
        "log",
        "agl_progress._log:run_log",
        summary="log.jsonl in the run's directory, which other programs can follow",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "watch",
        "agl_progress._watch:command",
        summary="watch a run of another process",
    )


@hookimpl
def agl_run_finished() -> None:
    """Prepare the notebook that the report is returned to."""
    from agl_progress._notebook import show_reports  # noqa: PLC0415  after the run

    show_reports()
