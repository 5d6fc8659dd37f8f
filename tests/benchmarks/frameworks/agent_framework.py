"""Microsoft Agent Framework, over chat completions."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from constant_model import PRICE, URL
from openai import AsyncOpenAI


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """What asks the agent."""
    connections = AsyncOpenAI(base_url=URL, api_key="none")
    client = OpenAIChatCompletionClient(model="policy", async_client=connections)
    agent = Agent(client, "You keep a shop.", name="clerk", tools=[lookup])

    async def ask(question: str) -> None:
        await agent.run(question)

    return ask


def instrument(provider: Any) -> None:
    """Set OpenInference up: it rewrites the spans that the framework makes of itself."""
    from agent_framework.observability import enable_instrumentation
    from openinference.instrumentation.agent_framework import AgentFrameworkToOpenInferenceProcessor

    provider.add_span_processor(AgentFrameworkToOpenInferenceProcessor())
    enable_instrumentation(enable_sensitive_data=True)
