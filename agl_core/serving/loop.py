"""Event loops that agl-core creates."""

from __future__ import annotations

import asyncio
import contextlib
import importlib

from agl_core.clocks import monotonic


def steady_loop() -> asyncio.AbstractEventLoop:
    """A loop of the kind that the program has chosen, whose time user code cannot move."""
    loop = asyncio.new_event_loop()
    with contextlib.suppress(AttributeError):  # uvloop's, whose clock is out of reach anyway
        loop.time = monotonic
    return loop


def serving_loop() -> asyncio.AbstractEventLoop:
    """For a process that does nothing but serve: of uvloop where that is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return steady_loop()
    return uvloop.new_event_loop()
