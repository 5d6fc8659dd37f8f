"""The shop assistant of `agent.py` in AutoGen.

The program contains no training code and no line about the tuning of prompts. The environment
variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from functools import cache

from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import TextMessage, ToolCallSummaryMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

MODEL = "gpt-4o-mini-2024-07-18"
SORRY = "Sorry, I could not find that item."


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


@cache
def client(max_tokens: int) -> OpenAIChatCompletionClient:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAIChatCompletionClient(model=MODEL, temperature=0, max_tokens=max_tokens)


def looked_up(result: TaskResult) -> str | None:
    """Return the result of the planner's tool; None if it was not called or failed."""
    last = result.messages[-1]
    if not isinstance(last, ToolCallSummaryMessage) or any(each.is_error for each in last.results):
        return None
    return last.content


async def answer(question: str) -> str:
    """Answer one customer with new agents, as an agent keeps its conversation."""
    planner = AssistantAgent("planner", client(40), tools=[lookup], system_message=PLANNER_SYSTEM)
    writer = AssistantAgent("writer", client(20), system_message=WRITER_SYSTEM)
    result = looked_up(await planner.run(task=question))
    if result is None:
        return SORRY
    answer = (await writer.run(task=writer_request(question, result))).messages[-1]
    return answer.content if isinstance(answer, TextMessage) else SORRY
