"""The composition root: a configuration and plugins become rooms, and the rooms a run.

Reading order: `parts` (each part from its configuration), `rooms` (opened and closed in order),
`run` (train or evaluate in them), `facade` (what a user calls).
"""

from agl_core.app.facade import attach, evaluate, run_blocking, train
from agl_core.app.parts import Inputs
from agl_core.app.run import App

__all__ = ["App", "Inputs", "attach", "evaluate", "run_blocking", "train"]
