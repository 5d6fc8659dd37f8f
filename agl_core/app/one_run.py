"""One run per process: where its gateway is stands in the environment, which there is once."""

from __future__ import annotations

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
    going: bool = False

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.name!r}, since {since} in thread {self.thread!r}"


class _Runs:
    """The run that is going on in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: _Run | None = None

    def begin(self, run: _Run) -> None:
        with self._lock:
            if self._current is not None:
                raise ConfigError(
                    f"Run {run.name!r} cannot start: a run is going on in this process already "
                    f"({self._current}), and OPENAI_BASE_URL and OPENAI_API_KEY can name one "
                    f"gateway only. Start it when that one has ended, or in a process of its own"
                )
            self._current = run

    def end(self, run: _Run) -> None:
        with self._lock:
            if self._current is run:
                self._current = None


_RUNS: Final = _Runs()


@contextmanager
def only_run(name: str) -> Generator[Whole[Any], None, None]:
    """Have this be the one run of the process; gives what the run's coroutine must pass through.

    A run that goes on after its caller was interrupted is over only when its coroutine is.

    Args:
        name: Of the run.

    Raises:
        ConfigError: one is going on.
    """
    run = _Run(name)
    _RUNS.begin(run)

    async def whole(coroutine: Coroutine[Any, Any, T]) -> T:
        run.going = True
        try:
            return await coroutine
        finally:
            run.going = False
            _RUNS.end(run)

    try:
        yield whole
    finally:
        if not run.going:
            _RUNS.end(run)
