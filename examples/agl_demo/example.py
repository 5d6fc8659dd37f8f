"""What the numbered examples share: the shop's tasks, the reward, and what a run came to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agl_demo.training import reward, rows

if TYPE_CHECKING:
    from agl_core import Task
    from agl_core.app.report import Report

__all__ = ["held_out_tasks", "reward", "show", "train_tasks"]

_SEED = 1
_TRAIN_TASKS, _HELD_OUT_TASKS = 200, 100


def train_tasks() -> list[Task]:
    """Questions about items that the held-out tasks never mention."""
    return rows("train", _TRAIN_TASKS, _SEED)


def held_out_tasks() -> list[Task]:
    """Questions about items that training never mentions."""
    return rows("held_out", _HELD_OUT_TASKS, _SEED)


def show(report: Report) -> None:
    """Print how many held-out tasks were right before and after, and where the weights are."""
    before, after = report.evaluations[0].score, report.evaluations[-1].score
    lines = (
        f"held-out tasks answered right: {before.mean:.2f} before, {after.mean:.2f} after",
        f"model calls: {report.calls}, lost by cause: {report.lost or 'nothing'}",
        f"weights: {report.export(f'{report.directory}/weights')}",
    )
    sys.stdout.write("\n".join(lines) + "\n")
