"""The client's side of the calculator: one server for all problems of an event loop.

To start a server for each problem would take longer than to solve it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path

from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

SERVER = StdioServerParams(
    command=sys.executable,
    args=[str(Path(__file__).with_name("server.py"))],
    read_timeout_seconds=30,
)
ENDED = "The calculator's server ended while a problem was solved; the next one starts it again"


class CalculatorError(RuntimeError):
    """The calculator's server cannot be started, or ended while a problem was solved."""


@dataclass
class Kept:
    """A server, and how many problems use it now."""

    workbench: McpWorkbench
    users: int = 0


@dataclass
class Shelf:
    """Where the calculator of an event loop is kept."""

    loop: asyncio.AbstractEventLoop
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: Kept | None = None


_shelves: list[Shelf] = []
"""At most one."""


@asynccontextmanager
async def calculator() -> AsyncIterator[McpWorkbench]:
    """Yield the calculator of this event loop; start a server if none responds.

    Raises:
        CalculatorError: it cannot be started.
    """
    shelf = _shelf()
    async with shelf.lock:
        if shelf.kept is not None and not await responds(shelf.kept.workbench):
            dead, shelf.kept = shelf.kept, None
            await _stop_unused(dead)
        if shelf.kept is None:
            # The task that reads from the server outlives this problem, and so has no part of it.
            shelf.kept = Kept(await asyncio.create_task(_start(), context=Context()))
        kept = shelf.kept
        kept.users += 1
    try:
        yield kept.workbench
    finally:
        kept.users -= 1
        if kept is not shelf.kept:
            await _stop_unused(kept)


async def close() -> None:
    """End the server of this event loop, which no problem uses any more."""
    shelf = _shelf()
    kept, shelf.kept = shelf.kept, None
    if kept is not None:
        await kept.workbench.stop()


async def responds(workbench: McpWorkbench) -> bool:
    """Whether the server answers a request."""
    try:
        await workbench.list_tools()
    except Exception:  # noqa: BLE001  MCP raises many types, none of which is an answer
        return False
    return True


async def _start() -> McpWorkbench:
    workbench = McpWorkbench(SERVER)
    await workbench.start()
    try:
        await workbench.list_tools()
    except Exception as error:
        await workbench.stop()
        command = " ".join([SERVER.command, *SERVER.args])
        raise CalculatorError(
            f"The calculator's server does not start; run it by hand to see why: {command}"
        ) from error
    return workbench


async def _stop_unused(kept: Kept) -> None:
    """Stop a workbench that has no user; one that is stopped would start a server if used."""
    if not kept.users:
        await kept.workbench.stop()


def _shelf() -> Shelf:
    loop = asyncio.get_running_loop()
    if not _shelves or _shelves[0].loop is not loop:
        _shelves[:] = [Shelf(loop)]
    return _shelves[0]
