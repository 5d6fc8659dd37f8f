"""AutoGen with an assistant of agentchat."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from clock import Clock
from constant_model import PRICE, URL
from entries import enter_wrapt

_KNOWS = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """Return a function that asks a new agent each time, since an agent keeps its history."""
    model = OpenAIChatCompletionClient(
        model="policy", base_url=URL, api_key="none", model_info=_KNOWS
    )

    async def ask(question: str) -> None:
        agent = AssistantAgent(
            "clerk",
            model,
            tools=[lookup],
            system_message="You keep a shop.",
            max_tool_iterations=100,
        )
        await agent.run(task=question)

    return ask


def instrument(provider: Any, clock: Clock) -> None:
    """Set OpenInference up."""
    enter_wrapt(clock)
    from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor

    AutogenAgentChatInstrumentor().instrument(tracer_provider=provider)
