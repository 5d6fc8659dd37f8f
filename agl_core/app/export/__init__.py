"""Recorded rollouts as training data for other programs, and the weights of checkpoints.

`rows` makes rows of one attempt, `files` writes them, `run` walks through a store, `facade` and
`weights` are what a user calls.
"""

from agl_core.app.export.facade import export_rollouts
from agl_core.app.export.rows import CallRow, TrajectoryRow
from agl_core.app.export.run import ExportFormat, ExportOptions, ExportSummary, export_from
from agl_core.app.export.weights import export_weights

__all__ = [
    "CallRow",
    "ExportFormat",
    "ExportOptions",
    "ExportSummary",
    "TrajectoryRow",
    "export_from",
    "export_rollouts",
    "export_weights",
]
