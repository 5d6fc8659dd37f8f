"""A shop assistant with Microsoft Agent Framework: one agent looks up a price, one reports it.

The environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint. One line is
added for training.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache

from agent_framework import (
    Agent,
    AgentResponse,
    FunctionInvocationContext,
    FunctionMiddleware,
    MiddlewareTermination,
)
from agent_framework.openai import OpenAIChatCompletionClient
from agl_agent_framework import AglMiddleware
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request

MODEL = "gpt-4o-mini"
SORRY = "Sorry, I could not find that item."
RECORD = [AglMiddleware()]
"""The added line: records the agents during training, otherwise does nothing."""


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


class StopAfterLookup(FunctionMiddleware):
    """Middleware that makes the tool's result the planner's answer, without another model call."""

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        await call_next()
        raise MiddlewareTermination(result=context.result)


@cache
def agents() -> tuple[Agent, Agent]:
    """Create planner and writer at first use; their client reads the environment."""
    client = OpenAIChatCompletionClient(MODEL)
    planner = Agent(
        client,
        PLANNER_SYSTEM,
        name="planner",
        tools=[lookup],
        middleware=[*RECORD, StopAfterLookup()],
    )
    writer = Agent(client, WRITER_SYSTEM, name="writer", middleware=RECORD)
    return planner, writer


def found(response: AgentResponse) -> str | None:
    """Return the result of the tool; None if it was not called or failed."""
    for message in response.messages:
        for content in message.contents:
            if content.type == "function_result" and content.exception is None:
                return content.result
    return None


async def answer(question: str) -> str:
    """Answer one customer."""
    planner, writer = agents()
    result = found(await planner.run(question))
    if result is None:
        return SORRY
    return (await writer.run(writer_request(question, result))).text
