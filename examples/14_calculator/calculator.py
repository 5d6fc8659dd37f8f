"""The client's side of the calculator: one server for all problems of an event loop.

To start a server for each problem would take longer than to solve it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autogen_ext.tools.mcp import (
    StdioMcpToolAdapter,
    StdioServerParams,
    create_mcp_server_session,
)
from mcp import ClientSession

SERVER = StdioServerParams(
    command=sys.executable,
    args=[str(Path(__file__).with_name("server.py"))],
    read_timeout_seconds=30,
)
ENDED = "The calculator's server ended while a problem was solved; the next one starts it again"


class CalculatorError(RuntimeError):
    """The calculator's server cannot be started, or ended while a problem was solved."""


class TextTool(StdioMcpToolAdapter):
    """A tool whose result the model reads as its text, without the JSON of MCP around it."""

    def return_value_as_string(self, value: Any) -> str:
        """Return the text of a result."""
        return "\n".join(each.text for each in value)


@dataclass(frozen=True, slots=True)
class Calculator:
    """A server that runs, and its tools."""

    session: ClientSession
    tools: Sequence[TextTool]

    async def responds(self) -> bool:
        """Whether the server answers a request."""
        try:
            await self.session.send_ping()
        except Exception:  # noqa: BLE001  MCP raises many types, none of which is an answer
            return False
        return True


@dataclass(slots=True)
class Shelf:
    """Where the calculator of an event loop is kept."""

    loop: asyncio.AbstractEventLoop
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calculator: Calculator | None = None
    keeper: asyncio.Task[None] | None = None
    """Holds the session open; it ends with the server or with the loop."""


_shelves: list[Shelf] = []
"""At most one."""


async def calculator() -> Calculator:
    """Return the calculator of this event loop; start a server if none responds.

    Raises:
        CalculatorError: it cannot be started.
    """
    shelf = _shelf()
    async with shelf.lock:
        if shelf.calculator is None or not await shelf.calculator.responds():
            await _end(shelf)
            shelf.calculator = await _start(shelf)
        return shelf.calculator


async def close() -> None:
    """End the server of this event loop, which no problem uses any more."""
    await _end(_shelf())


async def _start(shelf: Shelf) -> Calculator:
    ready: asyncio.Future[Calculator] = shelf.loop.create_future()
    # The task outlives the problem for which the server is started, and so has no part of it.
    shelf.keeper = asyncio.create_task(_keep(ready), context=Context())
    try:
        return await ready
    except Exception as error:
        command = " ".join([SERVER.command, *SERVER.args])
        raise CalculatorError(
            f"The calculator's server does not start; run it by hand to see why: {command}"
        ) from error


async def _keep(ready: asyncio.Future[Calculator]) -> None:
    try:
        async with create_mcp_server_session(SERVER) as session:
            await session.initialize()
            listed = (await session.list_tools()).tools
            tools = [TextTool(SERVER, tool, session) for tool in listed]
            if not ready.done():
                ready.set_result(Calculator(session, tools))
            await asyncio.Event().wait()
    except Exception as error:  # noqa: BLE001  of many types; `_start` raises it
        if not ready.done():
            ready.set_exception(error)


async def _end(shelf: Shelf) -> None:
    keeper, shelf.keeper, shelf.calculator = shelf.keeper, None, None
    if keeper is not None:
        keeper.cancel()
        await asyncio.wait([keeper])


def _shelf() -> Shelf:
    loop = asyncio.get_running_loop()
    if not _shelves or _shelves[0].loop is not loop:
        _shelves[:] = [Shelf(loop)]
    return _shelves[0]
