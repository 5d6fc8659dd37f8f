"""The composition root: a configuration and plugins become components, and those a run.

Reading order: `parts` (each part from its configuration), `components` (opened and closed in
order), `run` (train, evaluate or try with them), `facade` (what a user calls).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.app.facade import attach, evaluate, run_blocking, train
from agl_core.app.parts import Inputs
from agl_core.app.report import Report
from agl_core.app.run import App, Trial, Tried

if TYPE_CHECKING:
    from agl_core.app.gateway import openai_server

__all__ = [
    "App",
    "Inputs",
    "Report",
    "Trial",
    "Tried",
    "attach",
    "evaluate",
    "openai_server",
    "run_blocking",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the servers of other processes on first use: training does not need them."""
    if name != "openai_server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.app.gateway import openai_server as made  # noqa: PLC0415

    return made
