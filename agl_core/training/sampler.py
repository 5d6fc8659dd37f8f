"""Which tasks a step trains on, and with which seeds: functions of the run's seed alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from agl_core.errors import ConfigError
from agl_core.text import exact_bytes
from agl_core.types import Task


class TaskSampler:
    """Walks shuffled epochs of the tasks; step n's tasks do not depend on how it was reached."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Take the data set.

        Raises:
            ConfigError: there are no tasks, or two share an id.
        """
        if not tasks:
            raise ConfigError("There are no training tasks: the data set is empty")
        ids = [task.id for task in tasks]
        if len(set(ids)) != len(ids):
            twice = next(id_ for id_ in ids if ids.count(id_) > 1)
            raise ConfigError(f"Task id {twice!r} appears more than once: ids must be unique")
        self._tasks = list(tasks)
        self._seed = seed

    def step(self, step: int, *, size: int) -> list[Task]:
        """The `size` tasks of a step (0-based), distinct within an epoch."""
        count = len(self._tasks)
        positions = range(step * size, (step + 1) * size)
        orders = {epoch: self._order(epoch) for epoch in {at // count for at in positions}}
        return [self._tasks[orders[at // count][at % count]] for at in positions]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)  # noqa: S311 (not for secrets)
        return order


def derive_seed(*parts: object) -> int:
    """A 31-bit seed that depends on every part, equal in every process and on every platform."""
    digest = hashlib.sha256(exact_bytes("\x1f".join(str(part) for part in parts))).digest()
    return int.from_bytes(digest[:4], "big") >> 1
