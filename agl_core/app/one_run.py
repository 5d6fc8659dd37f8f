"""One run per process: the environment, which names the gateway, belongs to the whole process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from agl_core.clocks import wall
from agl_core.errors import ConfigError

T = TypeVar("T")
Whole = Callable[[Coroutine[Any, Any, T]], Coroutine[Any, Any, T]]


@dataclass(slots=True)
class _Run:
    name: str
    since: float = field(default_factory=wall)
    thread: str = field(default_factory=lambda: threading.current_thread().name)
    active: bool = False
    """Its coroutine runs."""

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.name!r}, since {since} in thread {self.thread!r}"


class _Runs:
    """The current run of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: _Run | None = None

    def begin(self, run: _Run) -> None:
        with self._lock:
            if self._current is not None:
                raise ConfigError(
                    f"Run {run.name!r} cannot start: this process already runs {self._current}, "
                    f"and OPENAI_BASE_URL and OPENAI_API_KEY name one gateway only. Start it after "
                    f"that run has ended, or in another process"
                )
            self._current = run

    def activate(self, run: _Run) -> bool:
        """Whether its coroutine may run: its caller has not given it up."""
        with self._lock:
            run.active = self._current is run
            return run.active

    def end(self, run: _Run, *, coroutine: bool) -> None:
        """Make room for the next run, once the coroutine has ended or if it never began."""
        with self._lock:
            if coroutine:
                run.active = False
            if self._current is run and not run.active:
                self._current = None


_RUNS: Final = _Runs()


@contextmanager
def only_run(name: str) -> Generator[Whole[Any], None, None]:
    """Make this the only run of the process; yields a wrapper for the run's coroutine.

    The caller may be interrupted first: a run ends when its coroutine ends, and a coroutine that
    has not begun by then is cancelled.

    Args:
        name: Of the run.

    Raises:
        ConfigError: another run has not ended.
    """
    run = _Run(name)
    _RUNS.begin(run)

    async def whole(coroutine: Coroutine[Any, Any, T]) -> T:
        if not _RUNS.activate(run):
            coroutine.close()
            raise asyncio.CancelledError
        try:
            return await coroutine
        finally:
            _RUNS.end(run, coroutine=True)

    try:
        yield whole
    finally:
        _RUNS.end(run, coroutine=False)
