"""Clocks that user code cannot change, and identifiers that sort by creation time.

Programs freeze or shift time, for their tests or to give an agent a fixed date. Such tools replace
the functions that modules have imported from `time` (freezegun), or the functions in `time` that
read the system's wall clock (time-machine). Deadlines, leases and event loops use the functions of
this module, which neither tool changes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from random import SystemRandom
from threading import Lock
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


_TICKS_PER_MS_BITS = 12
_FRACTION = (1 << _TICKS_PER_MS_BITS) - 1
_NS_PER_MS = 1_000_000
_VERSION = 7 << _TICKS_PER_MS_BITS
_RANDOM_BITS = 62


class _Source:
    """The clock of all ids of the process; it is strictly increasing.

    A tick is 1/4096 ms, the 60 time bits of a UUIDv7 whose 12 `rand_a` bits are the fraction of the
    millisecond (RFC 9562, section 6.2, method 3). No tick is used twice, so the random half only
    has to distinguish processes: it is drawn once, and not from `random`, which programs seed.
    """

    __slots__ = ("last", "lock", "process")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again: a forked child must not inherit a held lock or repeat its parent's ids."""
        self.lock = Lock()
        self.last = 0
        noise = SystemRandom().getrandbits(_RANDOM_BITS)
        self.process = f"{0b10 << _RANDOM_BITS | noise:016x}"
        """The half after the time: a UUID's variant bits and the process's random bits."""


_SOURCE = _Source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SOURCE.reset)


def new_id(prefix: str) -> str:
    """Make ``<prefix>_<32 hex digits>``, the digits a UUIDv7.

    Ids of one process sort as strings in creation order, even if the system clock is set back; ids
    of several processes sort by their clocks. Thread-safe and safe after a fork.
    """
    source = _SOURCE
    with source.lock:
        tick = (wall_ns() << _TICKS_PER_MS_BITS) // _NS_PER_MS
        if tick <= source.last:
            tick = source.last + 1
        source.last = tick
    half = tick >> _TICKS_PER_MS_BITS << 16 | _VERSION | tick & _FRACTION
    return f"{prefix}_{half.to_bytes(8, 'big').hex()}{source.process}"
