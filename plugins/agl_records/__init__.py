"""The records of a run: list, show, delete and export them.

Reading order: `_run` (the rows of an export) with `_rows` and `_files`, `_marks` (what people say of
answers) and `_marked` (its export), `_facade` (the Python interface), `jsonl` (a whole store), then
`commands`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_records._conversations import calls_by_id as calls_by_id
    from agl_records._facade import export_marks as export_marks
    from agl_records._facade import export_rollouts as export_rollouts
    from agl_records._marked import MarksForm as MarksForm
    from agl_records._marked import MarksSummary as MarksSummary
    from agl_records._marked import export_marks_from as export_marks_from
    from agl_records._marked import marks_of as marks_of
    from agl_records._marks import MARKS_FILE as MARKS_FILE
    from agl_records._marks import Mark as Mark
    from agl_records._marks import MarkChange as MarkChange
    from agl_records._marks import MarkedAnswer as MarkedAnswer
    from agl_records._marks import MarkFilter as MarkFilter
    from agl_records._marks import Marks as Marks
    from agl_records._rows import CallRow as CallRow
    from agl_records._rows import TrajectoryRow as TrajectoryRow
    from agl_records._run import ExportFormat as ExportFormat
    from agl_records._run import ExportOptions as ExportOptions
    from agl_records._run import ExportSummary as ExportSummary
    from agl_records._run import export_from as export_from
    from agl_records.jsonl import export_lines as export_lines
else:
    __getattr__, __dir__, __all__ = late(__name__)
