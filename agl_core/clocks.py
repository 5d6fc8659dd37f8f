"""Clocks that user code cannot move.

Programs freeze or shift time, for tests of their own or to give an agent a fixed date. Such tools
replace what the modules of a process have imported from `time` (freezegun), or the functions
themselves where they read the system's wall clock (time-machine). Deadlines, leases and event loops
go by the functions below, which neither reaches.
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
"""The wall clock again, by a number of its own: the tools replace readings of number 0 alone."""
_STEP_NS: Final = 50_000_000
"""A coarse clock is up to 10 ms behind; by more than this the wall clock was set."""
_TOGETHER_NS: Final = 1_000_000
"""Two clocks read within this time count as read together: the thread was not interrupted."""


def _captured(name: str) -> Callable[..., Any]:
    """A function of `time`; kept in a closure, where a scan of modules does not find it."""
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
    # Until the wall clock is set, the fine clock's lead over the monotonic one is exact.
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
    """Seconds since some moment, as `time.monotonic`."""
    return _monotonic[0]()


def wall() -> float:
    """Unix seconds, as `time.time`."""
    return _wall_ns[0]() / _NS


def wall_ns() -> int:
    """Unix nanoseconds, as `time.time_ns`."""
    return _wall_ns[0]()


def steady_loop() -> asyncio.AbstractEventLoop:
    """An event loop of the kind that the program has chosen, whose time user code cannot move."""
    import asyncio  # noqa: PLC0415 - half of what a process without a loop would import

    loop = asyncio.new_event_loop()
    with contextlib.suppress(AttributeError):  # uvloop's, whose clock is out of reach anyway
        loop.time = monotonic
    return loop
