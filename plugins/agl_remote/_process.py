"""Settings for processes that only serve."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
from collections.abc import Generator
from typing import Final

from agl_core.clocks import steady_loop

_COLLECT_AFTER: Final = 50_000


@contextlib.contextmanager
def rare_collections() -> Generator[None]:
    """Run the garbage collector less often, and exclude the objects that exist now from it.

    It then runs after some hundred requests instead of a few. Requests create almost no reference
    cycles, but with Python's default threshold of 700 objects a gateway spends a tenth of its time
    on the search for them. Only for agl-core's own processes, not for a user's program.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def serving_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for a process that only serves: uvloop's if it is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return steady_loop()
    return uvloop.new_event_loop()
