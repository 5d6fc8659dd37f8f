"""Clocks that user code cannot change.

Programs freeze or shift time, for their tests or to give an agent a fixed date. Such tools replace
the functions that modules have imported from `time` (freezegun), or the functions in `time` that
read the system's wall clock (time-machine). Deadlines, leases and event loops use the functions of
this module, which neither tool changes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_NS: Final = 1_000_000_000
_LINUX_REALTIME_COARSE: Final = 5
"""The id of another clock with the wall time: the tools only replace readings of clock 0."""
_STEP_NS: Final = 50_000_000
"""A difference above which the wall clock was set; the coarse clock is up to 10 ms behind."""
_TOGETHER_NS: Final = 1_000_000
"""Two clocks that are read within this time are compared: the thread was not interrupted."""


def _captured(name: str) -> Callable[..., Any]:
    """Return a function of `time`, to be stored in a closure, which freezegun does not search."""
    return getattr(time, name)


def _make_monotonic() -> Callable[[], float]:
    if not hasattr(time, "clock_gettime"):
        return _captured("monotonic")
    read, number = _captured("clock_gettime"), time.CLOCK_MONOTONIC
    return lambda: read(number)


def _make_wall_ns() -> Callable[[], int]:
    if not hasattr(time, "clock_gettime_ns"):
        return _captured("time_ns")
    read = _captured("clock_gettime_ns")
    try:
        read(_LINUX_REALTIME_COARSE if sys.platform == "linux" else -1)
    except OSError:
        return lambda: read(time.CLOCK_REALTIME)
    # The exact difference of wall clock and monotonic clock, until the wall clock is set.
    lead = [read(time.CLOCK_REALTIME) - read(time.CLOCK_MONOTONIC)]

    def wall_ns() -> int:
        now: int = read(time.CLOCK_MONOTONIC)
        coarse: int = read(_LINUX_REALTIME_COARSE) - now
        if abs(coarse - lead[0]) > _STEP_NS and read(time.CLOCK_MONOTONIC) - now < _TOGETHER_NS:
            lead[0] = coarse
        return now + lead[0]

    return wall_ns


_monotonic: Final = [_make_monotonic()]
_wall_ns: Final = [_make_wall_ns()]


def monotonic() -> float:
    """Return seconds since an arbitrary moment, as `time.monotonic`."""
    return _monotonic[0]()


def wall() -> float:
    """Return Unix seconds, as `time.time`."""
    return _wall_ns[0]() / _NS


def wall_ns() -> int:
    """Return Unix nanoseconds, as `time.time_ns`."""
    return _wall_ns[0]()


def steady_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of the program's policy, with a clock that user code cannot change."""
    import asyncio  # noqa: PLC0415 - half of all imports of a process without a loop

    loop = asyncio.new_event_loop()
    with contextlib.suppress(AttributeError):  # uvloop, whose clock no tool changes
        loop.time = monotonic
    return loop
