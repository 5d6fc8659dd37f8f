"""The thread that runs all tensor operations of the engine."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from agl_core.errors import EngineError
from agl_torch.serving.outbox import Outbox
from agl_torch.serving.sequence import Generation

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class WorkerLane(Protocol):
    """The interface of `Lane` that the worker uses."""

    held: bool
    version: int
    trained_in: int | None

    @property
    def busy(self) -> bool: ...

    @property
    def resting(self) -> bool: ...

    def add(self, generation: Generation) -> None: ...

    def step(self, outbox: Outbox) -> None: ...

    def fail(self, error: EngineError, outbox: Outbox) -> None: ...


L = TypeVar("L", bound=WorkerLane)


@dataclass(frozen=True, slots=True)
class _Request:
    lane: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class _Job:
    """Work other than generation; it waits until its lane has no running answer."""

    run: Callable[[], Any]
    future: Future[Any]
    lane: str | None


class Worker(Generic[L]):
    """Generates tokens lane by lane and runs jobs in between, on its own thread.

    A job that names a lane holds it: running requests finish with the weights they started with,
    and new ones start after the job.
    """

    def __init__(self) -> None:
        self.lanes: dict[str, L] = {}
        """After the start, only the worker's thread accesses the lanes."""
        self._inbox: queue.SimpleQueue[_Request | _Job | None] = queue.SimpleQueue()
        self._jobs: list[_Job] = []
        self._outbox = Outbox()
        self._closing = False
        self._gate = threading.Lock()
        """Ensures that no item enters the inbox after the one that closes it."""
        self._thread = threading.Thread(target=self._work, name="agl-torch", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            EngineError: the worker was started or stopped before.
        """
        with self._gate:
            if self._closing or self._thread.ident is not None:
                raise EngineError("Engine 'torch' was started before: make a new one")
            self._thread.start()

    async def stop(self) -> None:
        """Fail the running answers with an error and join the thread; idempotent."""
        with self._gate:
            self._closing = True
            self._inbox.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def submit(self, lane: str, generation: Generation) -> None:
        """Queue a request.

        Raises:
            EngineError: the worker has stopped.
        """
        self._put(_Request(lane, generation))

    async def run(self, job: Callable[[], T], *, lane: str | None = None) -> T:
        """Run `job` on the thread; if `lane` is given, after its running requests.

        Raises:
            EngineError: the worker has stopped.
        """
        future: Future[T] = Future()
        self._put(_Job(job, future, lane))
        return await asyncio.wrap_future(future)

    def _put(self, item: _Request | _Job) -> None:
        with self._gate:
            if self._closing or not self._thread.is_alive():
                raise EngineError("Engine 'torch' is not running: start() it first")
            self._inbox.put(item)

    def _work(self) -> None:
        while self._receive():
            for name, lane in self.lanes.items():
                if lane.busy:
                    self._step(name, lane)
            self._run_jobs()
            self._outbox.flush()
        self._end()

    def _receive(self) -> bool:
        """Empty the inbox, blocking if there is nothing to do; return False to stop."""
        wait = not self._jobs and not any(lane.busy for lane in self.lanes.values())
        while True:
            try:
                item = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if item is None:
                return False
            if isinstance(item, _Job):
                self._jobs.append(item)
                if item.lane is not None:
                    self.lanes[item.lane].held = True
            else:
                self.lanes[item.lane].add(item.generation)

    def _step(self, name: str, lane: L) -> None:
        try:
            lane.step(self._outbox)
        except Exception as error:  # noqa: BLE001
            # A failed pass fails the answers in it, and so their attempts, but not the run.
            _LOG.exception("Generation of policy %s failed", name)
            lane.fail(_failure(name, lane, error), self._outbox)

    def _run_jobs(self) -> None:
        waiting: list[_Job] = []
        for job in self._jobs:
            if job.lane is not None and not self.lanes[job.lane].resting:
                waiting.append(job)
                continue
            self._run_job(job)
        self._jobs = waiting
        held = {job.lane for job in waiting}
        for name, lane in self.lanes.items():
            lane.held = name in held

    def _run_job(self, job: _Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            result = job.run()
        except Exception as error:  # noqa: BLE001 (the awaiting caller gets it)
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _end(self) -> None:
        error = EngineError("Engine 'torch' was stopped")
        for lane in self.lanes.values():
            lane.fail(error, self._outbox)
        self._outbox.flush()
        for job in self._jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)


def _failure(name: str, lane: WorkerLane, error: Exception) -> EngineError:
    weights = f"version {lane.version} of its weights"
    if lane.trained_in is not None:
        weights += f", which training step {lane.trained_in} made"
    if isinstance(error, FloatingPointError):
        return EngineError(
            f"Policy {name!r} could not generate with {weights}: {error}. The weights are spoilt: "
            f"lower algorithm.lr or algorithm.max_grad_norm and resume from a checkpoint, or check "
            f"the model in engine.dtype = 'float32'"
        )
    return EngineError(f"Policy {name!r} could not generate with {weights}: {error!r}")
