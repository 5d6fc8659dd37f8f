"""A clock for the recording code that excludes the recorded program.

A thread's clock runs while the thread is in a recording function, and stops while that function
calls what it wraps; each such stretch is stored. Coroutines and asynchronous generators are timed
step by step, so waiting is not counted. Standard library only.

The clock reads the wall time, twice per stretch: reading a thread's processor time takes a system
call, which makes the code after it slower by half. A stretch in which the thread was interrupted is
therefore too long. A program has the same stretches in each run; the median of each stretch over
the runs excludes the interrupted ones, and the sum of the medians is the cost of recording a run.
"""

from __future__ import annotations

import functools
import inspect
import statistics
import threading
import time
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

_TRIES = 2000


class _Here(threading.local):
    running = False
    since_ns = 0


class Clock:
    """A clock for all threads of one process."""

    def __init__(self) -> None:
        self._here = _Here()
        self._stretches_ns: list[int] = []
        nothing = self.ours(lambda: None)
        for _ in range(_TRIES):
            nothing()
        self._reading_ns = statistics.median(self._stretches_ns)

    def read(self) -> list[float]:
        """Return nanoseconds of each stretch since the last read, minus the clock's own cost."""
        stretches = [stretch - self._reading_ns for stretch in self._stretches_ns]
        self._stretches_ns.clear()
        return stretches

    def ours(self, function: Callable[..., Any]) -> Any:
        """Return a timed version of a recording function."""
        return self._switched(function, True)

    def theirs(self, function: Callable[..., Any]) -> Any:
        """Return a version of a wrapped function during which the clock stops."""
        return self._switched(function, False)

    def hands_on(self, wrapper: Callable[..., Any]) -> Any:
        """Return a timed version of a function that gets the wrapped one first, as in wrapt."""

        @functools.wraps(wrapper)
        def call(wrapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return timed(self.theirs(wrapped), *args, **kwargs)

        timed = self.ours(wrapper)
        return call

    def _switched(self, function: Callable[..., Any], ours: bool) -> Any:
        here = self._here

        def call(*args: Any, **kwargs: Any) -> Any:
            if here.running is ours:  # the state is already set by a caller
                return function(*args, **kwargs)
            before = self._switch(ours)
            try:
                result = function(*args, **kwargs)
            finally:
                self._switch(before)
            if inspect.iscoroutine(result):
                return self._stepped(result, ours)
            if inspect.isasyncgen(result):
                return self._items(result, ours)
            return result

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            if here.running is ours:
                return await function(*args, **kwargs)
            return await self._stepped(function(*args, **kwargs), ours)

        # Frameworks check whether a callback is a coroutine function.
        chosen = call_async if inspect.iscoroutinefunction(function) else call
        return functools.update_wrapper(chosen, function, updated=())

    def _switch(self, ours: bool) -> bool:
        """Start or stop the clock; return whether it ran before."""
        here = self._here
        before = here.running
        if before is not ours:
            now = time.perf_counter_ns()
            if before:
                self._stretches_ns.append(now - here.since_ns)
            here.running, here.since_ns = ours, now
        return before

    @types.coroutine
    def _stepped(self, awaited: Any, ours: bool) -> Generator[Any, Any, Any]:
        step, given = awaited.send, None
        while True:
            before = self._switch(ours)
            try:
                wanted = step(given)
            except StopIteration as stop:
                return stop.value
            finally:
                self._switch(before)
            try:
                step, given = awaited.send, (yield wanted)
            except BaseException as error:  # noqa: BLE001  handed to the body
                step, given = awaited.throw, error

    async def _items(
        self, items: AsyncGenerator[Any, Any], ours: bool
    ) -> AsyncGenerator[Any, None]:
        try:
            while True:
                try:
                    item = await self._stepped(items.__anext__(), ours)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            await items.aclose()


def usual_us(runs: list[list[float]]) -> float:
    """Return the microseconds of a run's stretches, from several runs of one program."""
    number = statistics.mode(map(len, runs))
    alike = [stretches for stretches in runs if len(stretches) == number]
    return sum(map(statistics.median, zip(*alike, strict=True))) / 1e3
