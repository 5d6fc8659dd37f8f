"""A shop assistant of two agents of Microsoft Agent Framework: one looks a price up, one says it.

An ordinary program: it knows no trainer and runs against the endpoint that ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` name.
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
"""The one added line: it records the agents, and does nothing outside a run."""


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


class StopAfterLookup(FunctionMiddleware):
    """What the tool found is the planner's answer: its model is not asked again."""

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        await call_next()
        raise MiddlewareTermination(result=context.result)


@cache
def agents() -> tuple[Agent, Agent]:
    """Planner and writer, made on first use: their client takes its address from the environment."""
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
    """What the tool gave; None when it was not used, or failed."""
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
