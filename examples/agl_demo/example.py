"""Shared code of the numbered examples: the shop's tasks, the reward, and printing the result."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agl_demo.training import reward, rows

if TYPE_CHECKING:
    from agl_core import Task
    from agl_core.app import Report

__all__ = ["held_out_tasks", "reward", "show", "train_tasks"]

_SEED = 1
_TRAIN_TASKS, _HELD_OUT_TASKS = 200, 100


def train_tasks() -> list[Task]:
    """Return questions about items that the held-out tasks do not contain."""
    return rows("train", _TRAIN_TASKS, _SEED)


def held_out_tasks() -> list[Task]:
    """Return questions about items that the training tasks do not contain."""
    return rows("held_out", _HELD_OUT_TASKS, _SEED)


def show(report: Report) -> None:
    """Print the scores on held-out tasks before and after, and the directory of the weights."""
    before, after = report.evaluations[0].score, report.evaluations[-1].score
    lines = (
        f"held-out tasks answered right: {before.mean:.2f} before, {after.mean:.2f} after",
        f"model calls: {report.calls}, lost by cause: {report.lost or 'nothing'}",
        f"weights: {report.export(f'{report.directory}/weights')}",
    )
    sys.stdout.write("\n".join(lines) + "\n")
