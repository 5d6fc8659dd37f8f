"""Identifiers that sort by the time they were made."""

from __future__ import annotations

import os
from random import Random
from threading import Lock
from time import time_ns

_NS_PER_MS = 1_000_000
_FRACTION = 0xFFF
_UUID7 = 7 << 76 | 1 << 63
"""Version and variant bits."""


class _Source:
    """The one clock behind all ids of the process: strictly increasing, however often it is read.

    A tick is 1/4096 ms, the 60 time bits of a UUIDv7 whose 12 `rand_a` bits hold the fraction of
    the millisecond (RFC 9562, section 6.2, method 3). The random half comes from an own generator:
    a program that seeds `random` must not make two processes draw the same ids.
    """

    __slots__ = ("_last", "_lock", "_noise")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew; a forked child must neither inherit a held lock nor repeat its parent."""
        self._lock = Lock()
        self._noise = Random().getrandbits  # noqa: S311  unique, not secret
        self._last = 0

    def draw(self) -> int:
        with self._lock:
            tick = (time_ns() << 12) // _NS_PER_MS
            if tick <= self._last:
                tick = self._last + 1
            self._last = tick
            noise = self._noise(62)
        return (tick & ~_FRACTION) << 68 | (tick & _FRACTION) << 64 | _UUID7 | noise


_SOURCE = _Source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SOURCE.reset)


def new_id(prefix: str) -> str:
    """Make ``<prefix>_<32 hex digits>``, the digits a UUIDv7.

    Ids of one process sort as strings in the order they were made, also when the system clock is
    set back; ids of several processes sort by their clocks. Thread-safe and safe after a fork.
    """
    return f"{prefix}_{_SOURCE.draw():032x}"
