"""One thread for everything that waits for Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agl_core.errors import AglError, TrainingError

T = TypeVar("T")


class Driver:
    """Runs verl's calls one after the other, off the event loop, and tells their errors plainly."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agl-verl")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`.

        Raises:
            AglError: what a worker raised of ours, as it was.
            TrainingError: a worker raised something else or died.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: _told(work))

    def close(self) -> None:
        """Finish what has begun and take nothing more."""
        self._pool.shutdown(wait=True)


def _told(work: Callable[[], T]) -> T:
    from ray.exceptions import RayActorError, RayError  # noqa: PLC0415

    try:
        return work()
    except RayActorError as error:
        raise TrainingError(
            f"A process of verl died: {_last_line(error)}. If the system ended it for want of "
            f"memory, lower actor.ppo_max_token_len_per_gpu or rollout.gpu_memory_utilization "
            f"under [verl.actor_rollout_ref]; train.resume = true goes on from the checkpoint"
        ) from error
    except RayError as error:
        cause = _cause(error)
        if isinstance(cause, AglError):
            raise cause from error
        if isinstance(cause, OSError):
            raise TrainingError(f"A process of verl failed: {cause}") from error
        raise TrainingError(f"A process of verl failed: {_last_line(error)}") from error


def _cause(error: Any) -> BaseException | None:
    """What the worker raised."""
    seen: Any = error
    while seen is not None and not isinstance(seen, (AglError, OSError)):
        seen = getattr(seen, "cause", None)
    return seen


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
