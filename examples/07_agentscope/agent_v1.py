"""The program of `agent.py` in AgentScope 1, which no line has to be added to.

It too knows no trainer, and runs against the endpoint that ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` name.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request

SORRY = "Sorry, I could not find that item."


class Assistant(ReActAgent):
    """A reply that is cancelled ends: the framework would answer that it was, and continue."""

    async def handle_interrupt(self, *_: Any, **__: Any) -> Msg:
        raise asyncio.CancelledError


@cache
def model() -> OpenAIChatModel:
    """Made on first use: the address and key are those of the environment."""
    return OpenAIChatModel("gpt-4o-mini", stream=False)


def user(text: str) -> Msg:
    return Msg("user", text, "user")


async def plan(question: str) -> str | None:
    """Let the planner look the price up; None when it did not, or asked for another item."""
    results: list[str] = []

    async def lookup(item: str) -> ToolResponse:
        """Look up what an item costs."""
        results.append(lookup_price(item))
        return ToolResponse([TextBlock(type="text", text=results[-1])])

    tools = Toolkit()
    tools.register_tool_function(lookup)
    # The tool is used once. The framework then asks for a closing message, which is not used.
    planner = Assistant(
        "planner", PLANNER_SYSTEM, model(), OpenAIChatFormatter(), tools, max_iters=1
    )
    await planner(user(question))
    return results[-1] if results else None


async def answer(question: str) -> str:
    """Answer one customer, with agents of its own: an agent keeps its conversation."""
    result = await plan(question)
    if result is None:
        return SORRY
    writer = Assistant("writer", WRITER_SYSTEM, model(), OpenAIChatFormatter())
    reply = await writer(user(writer_request(question, result)))
    return reply.get_text_content() or ""
