"""The event loop of a process that does nothing but serve."""

from __future__ import annotations

import asyncio
import importlib


def serving_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop's where that is installed, else Python's own."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
