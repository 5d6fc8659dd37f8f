"""Scores of candidates on the validation tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from agl_core.training import estimate
from agl_core.types import Estimate, Task
from agl_prompts._guards import task_digest
from agl_prompts._seen import Seen


class Scores:
    """The validation scores of every candidate, by task."""

    def __init__(self, val: Sequence[Task], *, incumbent: str) -> None:
        """Create empty scores.

        Args:
            val: The validation tasks.
            incumbent: Digest of the incumbent.
        """
        self._tasks = {task_digest(task) for task in val}
        self._incumbent = incumbent
        self._by_task: dict[str, dict[str, list[float]]] = {}

    def add(self, digest: str, seen: Sequence[Seen]) -> None:
        """Add the results of a candidate; tasks that are not validation tasks are ignored."""
        tasks = self._by_task.setdefault(digest, {})
        for each in seen:
            task = task_digest(each.task)
            if task in self._tasks:
                tasks.setdefault(task, []).extend(each.scores)

    def estimate(self, digest: str) -> Estimate | None:
        """Return the mean over tasks; None until all ran and half of them were not lost."""
        tasks = self._by_task.get(digest, {})
        if len(tasks) < len(self._tasks):
            return None
        means = [fsum(scores) / len(scores) for scores in tasks.values() if scores]
        return self.estimate_of(means) if 2 * len(means) >= len(self._tasks) else None

    @staticmethod
    def estimate_of(values: Sequence[float]) -> Estimate | None:
        """Return the mean of values with its interval; None without values."""
        return estimate(values) if values else None

    @property
    def best(self) -> str:
        """Digest of the candidate with the highest mean, the first one among equals."""
        best, highest = self._incumbent, None
        for digest in dict.fromkeys([self._incumbent, *self._by_task]):
            found = self.estimate(digest)
            if found is not None and (highest is None or found.mean > highest):
                best, highest = digest, found.mean
        return best

    @property
    def constant(self) -> float | None:
        """The score that every candidate had on every task; None if scores differ or are few."""
        scores = [
            score for tasks in self._by_task.values() for each in tasks.values() for score in each
        ]
        return scores[0] if len(scores) > 1 and len(set(scores)) == 1 else None
