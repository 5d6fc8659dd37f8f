"""The writers of a store: which one runs an operation, and when."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from agl_postgres._writer import CommitThread, Operation, QueuedWrite, Touched

Deliver = Callable[[Sequence[QueuedWrite]], None]


class _Writer:
    """A commit thread with the operations that it has not completed."""

    def __init__(self, make: Callable[[Deliver], CommitThread], completed: Deliver) -> None:
        self.thread = make(self._deliver)
        self.jobs = 0
        self._completed = completed
        self._names: Counter[str] = Counter()
        self._unknown = 0
        """Number of the operations that may touch any row."""

    def add(self, job: QueuedWrite) -> None:
        self.jobs += 1
        if job.touched is None:
            self._unknown += 1
        else:
            self._names.update(job.touched.names)
        self.thread.submit(job)

    def delays(self, touched: Touched | None) -> bool:
        """Return whether an operation must wait until this writer has completed its own."""
        if not self.jobs:
            return False
        return (
            touched is None or self._unknown > 0 or not self._names.keys().isdisjoint(touched.names)
        )

    def _deliver(self, group: Sequence[QueuedWrite]) -> None:
        for job in group:
            self.jobs -= 1
            if job.touched is None:
                self._unknown -= 1
                continue
            for name in job.touched.names:
                self._names[name] -= 1
                if not self._names[name]:
                    del self._names[name]
        self._completed(group)


class Writers:
    """A writer for operations that only add spans, and one for all others.

    Spans are most of the data, and need not wait for the disk, so others do not wait for them.
    Operations on the same rollouts or attempts take effect in the order in which they were
    submitted: an operation waits while another writer has an earlier one.
    """

    def __init__(self, make: Callable[[Deliver], CommitThread], *, separate: bool) -> None:
        """Build the writers.

        Args:
            make: Makes a commit thread, which calls the given function with what it completed.
            separate: False for one writer, which needs one connection less.
        """
        self._states = _Writer(make, self._completed)
        self._spans = _Writer(make, self._completed) if separate else self._states
        self._all = {self._states, self._spans}
        self._held: deque[QueuedWrite] = deque()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def start(self) -> None:
        for one in self._all:
            one.thread.start()

    def submit(self, operation: Operation, touched: Touched | None) -> asyncio.Future[Any]:
        """Queue an operation; the future has its result once the writes are durable."""
        job = QueuedWrite(operation, asyncio.get_running_loop().create_future(), touched)
        self._quiet.clear()
        self._held.append(job)
        self._start_held()
        return job.future

    async def stop(self) -> None:
        """Complete the submitted operations and give the connections back."""
        await self._quiet.wait()
        for one in self._all:
            await one.thread.stop()

    def _start_held(self) -> None:
        """Start operations in order, up to one that must wait."""
        while self._held:
            touched = self._held[0].touched
            writer = self._spans if touched and touched.only_spans else self._states
            if any(one is not writer and one.delays(touched) for one in self._all):
                return
            writer.add(self._held.popleft())

    def _completed(self, group: Sequence[QueuedWrite]) -> None:
        del group
        self._start_held()
        if not any(one.jobs for one in self._all):
            self._quiet.set()
