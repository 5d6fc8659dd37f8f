"""The composition root: a configuration and plugins become components, and those a run.

Reading order: `parts` (each part from its configuration), `components` (opened and closed in
order), `run` (train or evaluate with them), `trial` (try them), `facade` (what a user calls).
"""

from agl_core.app.facade import attach, evaluate, run_blocking, train
from agl_core.app.parts import Inputs
from agl_core.app.report import Report
from agl_core.app.run import App, Trial, Tried
from agl_core.app.serve import openai_server

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
