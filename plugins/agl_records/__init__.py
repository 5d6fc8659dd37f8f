"""The records of a run: list, show, delete and export them.

Reading order: `_run` (the rows of an export) with `_rows` and `_files`, `_facade` (the Python
interface), `jsonl` (a whole store), then `commands`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_records._facade import export_rollouts as export_rollouts
    from agl_records._rows import CallRow as CallRow
    from agl_records._rows import TrajectoryRow as TrajectoryRow
    from agl_records._run import ExportFormat as ExportFormat
    from agl_records._run import ExportOptions as ExportOptions
    from agl_records._run import ExportSummary as ExportSummary
    from agl_records._run import export_from as export_from
else:
    __getattr__, __dir__, __all__ = late(__name__)
