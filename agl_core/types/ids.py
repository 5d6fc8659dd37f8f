"""Identifiers that sort by creation time."""

from __future__ import annotations

import os
from random import SystemRandom
from threading import Lock

from agl_core.clocks import wall_ns

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
