"""The composition root: it builds components from a configuration and plugins, and runs them.

Reading order: `parts` (building each part), `components` (opening and closing them in order),
`run` (training, evaluation, trial), `facade` (the user's functions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_core.app.facade import attach, evaluate, run_blocking, train
from agl_core.app.parts import Inputs, gateway_server
from agl_core.app.report import Report
from agl_core.app.run import App, Trial, Tried

if TYPE_CHECKING:
    from agl_core.app.serve import openai_server

__all__ = [
    "App",
    "Inputs",
    "Report",
    "Trial",
    "Tried",
    "attach",
    "evaluate",
    "gateway_server",
    "openai_server",
    "run_blocking",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import `openai_server` on first use, as training does not need it."""
    if name != "openai_server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.app.serve import openai_server as made  # noqa: PLC0415

    return made
