"""The thread for all calls that block on Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from agl_core.errors import AglError, EngineError, TrainingError
from agl_verl._logs import cause_in, folder

T = TypeVar("T")

_MEMORY: Final = (
    "If there was too little memory, lower actor.ppo_max_token_len_per_gpu or "
    "rollout.gpu_memory_utilization under [verl.actor_rollout_ref]; train.resume = true continues "
    "from the checkpoint"
)
_NO_MEMORY: Final = ("OutOfMemoryError", "can't allocate memory")
"""Parts of torch's out-of-memory messages, on a GPU and on a CPU."""
_REFUSALS: Final = (
    ArithmeticError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that verl raises in this process when it cannot continue."""


class Driver:
    """Runs verl's calls one after another in its own thread, and converts their errors."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agl-verl")
        self._closed = False
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        """Event loop and task of the running `wait_for`."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the driver's thread and return its result.

        Raises:
            AglError: `work` or a worker raised it; passed on unchanged.
            TrainingError: verl raised another error, or a worker died.
            EngineError: the driver is closed.
        """
        if self._closed:
            raise EngineError("Engine 'verl' was stopped: start another")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: self._work(work))

    def interrupt(self) -> None:
        """Cancel the running `wait_for`, which would never return after Ray's shutdown."""
        if self._waiting is not None:
            loop, task = self._waiting
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Wait for the running work; later calls of `run` raise."""
        self._closed = True
        self._pool.shutdown(wait=True)

    def _work(self, work: Callable[[], T]) -> T:
        _own.driver = self
        return _converting(work)

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; `interrupt` cancels it."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting = asyncio.get_running_loop(), task
        try:
            return await work
        finally:
            self._waiting = None


_own = threading.local()
"""The driver that owns the current thread."""


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of verl in a driver's thread, which has no running event loop.

    Raises:
        asyncio.CancelledError: `Driver.interrupt` was called.
    """
    driver: Driver = _own.driver
    return asyncio.run(driver.watched(work))


def _converting(work: Callable[[], T]) -> T:
    from ray.exceptions import RayError  # noqa: PLC0415

    since = time.time()
    try:
        return work()
    except RayError as error:
        cause = cause_of(error)
        if isinstance(cause, AglError):
            raise cause from error
        raise TrainingError(f"{_text(cause)}{_logged(error, since)}") from error
    except OSError as error:
        raise TrainingError(f"verl failed: {error}") from error
    except _REFUSALS as error:
        raise TrainingError(f"verl failed: {type(error).__name__}: {error}") from error


def _logged(error: BaseException, since: float) -> str:
    """Return the end of the failed process's log: verl's errors often only refer to it."""
    logs = folder()
    return "" if logs is None else f"\n{cause_in(logs, str(error), since=since)}"


def cause_of(error: Any) -> BaseException:
    """Return the original exception, raised in any process.

    Ray wraps it once per process it passes through, in a class that also derives from its class.
    """
    while isinstance(inner := getattr(error, "cause", None), BaseException):
        error = inner
    return error


def _text(cause: BaseException) -> str:
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError  # noqa: PLC0415

    message = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, OSError):
        message = str(cause)
    elif isinstance(cause, RayError):
        message = _last_line(cause)
    if isinstance(cause, RayActorError) and not cause.actor_init_failed:
        return f"A process of verl died: {message}. {_MEMORY}"
    if isinstance(cause, (OutOfMemoryError, MemoryError)) or any(
        each in message for each in _NO_MEMORY
    ):
        return f"A process of verl ran out of memory: {message}. {_MEMORY}"
    return f"A process of verl failed: {message}"


def _last_line(error: BaseException) -> str:
    """Return the last line of Ray's message, which has the cause after the tracebacks."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.partition(" Some common causes include")[0]
