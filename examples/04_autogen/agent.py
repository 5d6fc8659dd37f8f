"""A shop assistant of two AutoGen agents: the planner looks a price up, the writer says it.

An ordinary program: it knows no trainer and runs against the endpoint that ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` name.
"""

from __future__ import annotations

from functools import cache

from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import TextMessage, ToolCallSummaryMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

MODEL = "gpt-4o-mini-2024-07-18"
"""In full: AutoGen warns where the answer names another model than it asked for."""
SORRY = "Sorry, I could not find that item."


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


@cache
def client() -> OpenAIChatCompletionClient:
    """Made on first use: it takes its address and key from the environment."""
    return OpenAIChatCompletionClient(model=MODEL)


def found(result: TaskResult) -> str | None:
    """What the planner's tool gave; None when it was not used, or failed."""
    last = result.messages[-1]
    if not isinstance(last, ToolCallSummaryMessage) or any(each.is_error for each in last.results):
        return None
    return last.content


async def answer(question: str) -> str:
    """Answer one customer. Agents keep their conversation, so each customer has new ones."""
    planner = AssistantAgent("planner", client(), tools=[lookup], system_message=PLANNER_SYSTEM)
    writer = AssistantAgent("writer", client(), system_message=WRITER_SYSTEM)
    result = found(await planner.run(task=question))
    if result is None:
        return SORRY
    answer = (await writer.run(task=writer_request(question, result))).messages[-1]
    return answer.content if isinstance(answer, TextMessage) else SORRY
