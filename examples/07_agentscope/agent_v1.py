"""The program of `agent.py` for AgentScope 1.

The program contains no training code. The environment variables ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` set its endpoint.
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
    """An agent that raises when cancelled: by default it answers and continues."""

    async def handle_interrupt(self, *_: Any, **__: Any) -> Msg:
        raise asyncio.CancelledError


@cache
def model() -> OpenAIChatModel:
    """Create the model at first use; the environment sets address and key."""
    return OpenAIChatModel("gpt-4o-mini", stream=False)


def user(text: str) -> Msg:
    return Msg("user", text, "user")


async def plan(question: str) -> str | None:
    """Let the planner look up the price; return None if it failed or did not call the tool."""
    results: list[str] = []

    async def lookup(item: str) -> ToolResponse:
        """Look up what an item costs."""
        results.append(lookup_price(item))
        return ToolResponse([TextBlock(type="text", text=results[-1])])

    tools = Toolkit()
    tools.register_tool_function(lookup)
    # One tool call is allowed. The framework then requests a closing message, which is not used.
    planner = Assistant(
        "planner", PLANNER_SYSTEM, model(), OpenAIChatFormatter(), tools, max_iters=1
    )
    await planner(user(question))
    return results[-1] if results else None


async def answer(question: str) -> str:
    """Answer one customer with new agents, as an agent keeps its conversation."""
    result = await plan(question)
    if result is None:
        return SORRY
    writer = Assistant("writer", WRITER_SYSTEM, model(), OpenAIChatFormatter())
    reply = await writer(user(writer_request(question, result)))
    return reply.get_text_content() or ""
