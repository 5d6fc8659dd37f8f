"""One thread for everything that waits for Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from agl_core.errors import AglError, EngineError, TrainingError
from agl_verl.logs import cause_in, folder

T = TypeVar("T")

_MEMORY: Final = (
    "If there was too little memory, lower actor.ppo_max_token_len_per_gpu or "
    "rollout.gpu_memory_utilization under [verl.actor_rollout_ref]; train.resume = true continues "
    "from the checkpoint"
)
_NO_MEMORY: Final = ("OutOfMemoryError", "can't allocate memory")
"""What torch says for want of it, on a GPU and on a CPU."""
_REFUSALS: Final = (
    ArithmeticError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What verl raises in this process where it cannot continue."""


class Driver:
    """Runs verl's calls one after the other, off the event loop, and converts their errors."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agl-verl")
        self._closed = False
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        """What `wait_for` waits for."""

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`.

        Raises:
            AglError: what `work` or a worker raised of ours, as it was.
            TrainingError: verl failed otherwise, or a worker died.
            EngineError: `close` was called before.
        """
        if self._closed:
            raise EngineError("Engine 'verl' was stopped: start another")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: self._work(work))

    def interrupt(self) -> None:
        """Give up what `wait_for` waits for: once Ray ends, it would never return."""
        if self._waiting is not None:
            loop, task = self._waiting
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Finish what has begun and take nothing more."""
        self._closed = True
        self._pool.shutdown(wait=True)

    def _work(self, work: Callable[[], T]) -> T:
        _own.driver = self
        return _converting(work)

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, unless `interrupt` is called."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting = asyncio.get_running_loop(), task
        try:
            return await work
        finally:
            self._waiting = None


_own = threading.local()
"""The driver whose thread this is."""


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run verl's coroutine in a driver's thread, which has no event loop of its own.

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
    """What the failed process wrote: verl and vLLM often say no more than "see above"."""
    logs = folder()
    return "" if logs is None else f"\n{cause_in(logs, str(error), since=since)}"


def cause_of(error: Any) -> BaseException:
    """What was raised first, in whichever process.

    Ray wraps it once per process that it passes, in classes that are of its own class as well.
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
    """Where Ray's texts, tracebacks and all, come to the point."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.partition(" Some common causes include")[0]
