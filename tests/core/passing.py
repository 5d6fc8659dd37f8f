"""Deadlines that pass when a test says so."""

from __future__ import annotations

import asyncio


def pass_time(seconds: float) -> None:
    """Set the running loop's clock ahead: whoever waits there for as long has waited."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
