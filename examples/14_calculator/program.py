"""An AutoGen agent that solves word problems with a calculator, which an MCP server offers.

The program contains no training code. The environment variables ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` set its endpoint. One server runs as long as the event loop: to start one for
each problem would take longer than to solve it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import TextMessage, ToolCallExecutionEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

MODEL = "gpt-4o-mini-2024-07-18"
SYSTEM = (
    "Solve the problem with the calculator. End with one line: "
    "Answer: and the number, or the letter of the right option."
)
MOST_CALLS = 3
"""Calls of the model for a problem; the last of them must be the answer."""
ENDED = "The calculator's server ended while a problem was solved; the next one starts it again"
SERVER = StdioServerParams(
    command=sys.executable,
    args=[str(Path(__file__).with_name("server.py"))],
    read_timeout_seconds=30,
)


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


async def solve(question: str) -> str:
    """Solve a problem with a new agent; return its last text, empty if there is none.

    Raises:
        CalculatorError: no server; the next problem starts a new one.
    """
    async with calculator() as workbench:
        solver = AssistantAgent(
            "solver",
            client(),
            workbench=workbench,
            system_message=SYSTEM,
            max_tool_iterations=MOST_CALLS,
        )
        try:
            result = await solver.run(task=question)
        except Exception as error:
            if not await responds(workbench):
                raise CalculatorError(ENDED) from error
            raise
        if failed(result) and not await responds(workbench):
            raise CalculatorError(ENDED)
    last = result.messages[-1]
    return last.content if isinstance(last, TextMessage) and last.source == "solver" else ""


def failed(result: TaskResult) -> bool:
    """Whether a call of a tool failed; AutoGen gives the model the error as a text."""
    ran = [each for each in result.messages if isinstance(each, ToolCallExecutionEvent)]
    return any(call.is_error for each in ran for call in each.content)


@asynccontextmanager
async def calculator() -> AsyncIterator[McpWorkbench]:
    """Yield the calculator of this event loop; start a server if none responds.

    Raises:
        CalculatorError: it cannot be started.
    """
    shelf = _shelf()
    async with shelf.lock:
        if shelf.kept is None or not await responds(shelf.kept.workbench):
            shelf.kept = None
            # The task that reads from the server outlives this problem, and so has no part of it.
            shelf.kept = Kept(await asyncio.create_task(_start(), context=Context()))
    kept = shelf.kept
    kept.users += 1
    try:
        yield kept.workbench
    finally:
        kept.users -= 1
        if kept is not shelf.kept and not kept.users:
            await kept.workbench.stop()


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


def _shelf() -> Shelf:
    loop = asyncio.get_running_loop()
    if not _shelves or _shelves[0].loop is not loop:
        _shelves[:] = [Shelf(loop)]
    return _shelves[0]


@cache
def client() -> OpenAIChatCompletionClient:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAIChatCompletionClient(model=MODEL)
