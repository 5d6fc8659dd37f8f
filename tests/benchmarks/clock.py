"""Time of the code that records, apart from the program that it watches.

A thread's clock runs while it is in a function of the recording, and stands still while that has
handed on to what it wraps; each such stretch is kept. Coroutines and asynchronous generators are
timed step by step, so what they wait for costs nothing. Standard library only.

The clock on the wall is read, twice a stretch: that of a thread's processor time takes a system call,
which makes the code after it half as slow again. So a stretch in which the thread was interrupted is
too long. A program makes the same stretches each time it is run; the median of each over the runs
leaves the interrupted ones out, and their sum is what recording takes of a run.
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
    """Of one process, all its threads."""

    def __init__(self) -> None:
        self._here = _Here()
        self._stretches_ns: list[int] = []
        nothing = self.ours(lambda: None)
        for _ in range(_TRIES):
            nothing()
        self._reading_ns = statistics.median(self._stretches_ns)

    def read(self) -> list[float]:
        """Nanoseconds of each stretch since the last time, less what reading the clock takes."""
        stretches = [stretch - self._reading_ns for stretch in self._stretches_ns]
        self._stretches_ns.clear()
        return stretches

    def ours(self, function: Callable[..., Any]) -> Any:
        """The same function, timed."""
        return self._switched(function, True)

    def theirs(self, function: Callable[..., Any]) -> Any:
        """The same function, in which the clock stands still: what ours hands on to."""
        return self._switched(function, False)

    def hands_on(self, wrapper: Callable[..., Any]) -> Any:
        """A function of ours that is given first what it wraps, as those of ``wrapt`` are."""

        @functools.wraps(wrapper)
        def call(wrapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return timed(self.theirs(wrapped), *args, **kwargs)

        timed = self.ours(wrapper)
        return call

    def _switched(self, function: Callable[..., Any], ours: bool) -> Any:
        here = self._here

        def call(*args: Any, **kwargs: Any) -> Any:
            if here.running is ours:  # of whoever called it
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

        # Frameworks look whether what they are given is a coroutine function.
        chosen = call_async if inspect.iscoroutinefunction(function) else call
        return functools.update_wrapper(chosen, function, updated=())

    def _switch(self, ours: bool) -> bool:
        """Let the clock run or stand still; gives what it did before."""
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
    """Microseconds of a run's stretches, from several runs of one program."""
    number = statistics.mode(map(len, runs))
    alike = [stretches for stretches in runs if len(stretches) == number]
    return sum(map(statistics.median, zip(*alike, strict=True))) / 1e3
