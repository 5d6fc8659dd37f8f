"""Garbage collection in a process that does nothing but serve."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_OBJECTS: Final = 50_000


@contextmanager
def rare_collections() -> Generator[None]:
    """Look for cycles after some hundred requests instead of a few, and never in what is there now.

    Hardly anything that a request makes is part of a cycle, yet at Python's own threshold of 700
    objects the search takes a tenth of a gateway's time. For processes of our own only: a user's
    program has its own needs.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
