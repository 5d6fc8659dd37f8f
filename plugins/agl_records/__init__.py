"""The records of a run: list, show, delete and export them.

Reading order: `run` (the rows of an export) with `rows` and `files`, `facade` (the Python
interface), `jsonl` (a whole store), then `commands`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agl_records.facade import export_rollouts
    from agl_records.rows import CallRow, TrajectoryRow
    from agl_records.run import ExportFormat, ExportOptions, ExportSummary, export_from

__all__ = [
    "CallRow",
    "ExportFormat",
    "ExportOptions",
    "ExportSummary",
    "TrajectoryRow",
    "export_from",
    "export_rollouts",
]

_MODULES: Final = {
    "CallRow": "rows",
    "ExportFormat": "run",
    "ExportOptions": "run",
    "ExportSummary": "run",
    "TrajectoryRow": "rows",
    "export_from": "run",
    "export_rollouts": "facade",
}
"""The module of each exported name; loading the plugin imports none of them."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
