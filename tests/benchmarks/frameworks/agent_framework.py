"""Microsoft Agent Framework with chat completions."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from clock import Clock
from constant_model import PRICE, URL
from entries import enter_methods
from openai import AsyncOpenAI


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """Return a function that asks the agent."""
    connections = AsyncOpenAI(base_url=URL, api_key="none")
    client = OpenAIChatCompletionClient(model="policy", async_client=connections)
    agent = Agent(client, "You keep a shop.", name="clerk", tools=[lookup])

    async def ask(question: str) -> None:
        await agent.run(question)

    return ask


def instrument(provider: Any, clock: Clock) -> None:
    """Set OpenInference up: it rewrites the spans that the framework itself makes.

    The functions with which the framework reads its own objects for these spans are timed; code
    between them is not.
    """
    from agent_framework import observability
    from openinference.instrumentation.agent_framework import AgentFrameworkToOpenInferenceProcessor
    from opentelemetry.sdk.trace import Span, Tracer

    for name, function in vars(observability).items():
        if name.startswith("_") and isfunction(function):
            setattr(observability, name, clock.ours(function))
    enter_methods(clock, Tracer, "start_")
    enter_methods(clock, Span, "set_", "end")
    provider.add_span_processor(AgentFrameworkToOpenInferenceProcessor())
    observability.enable_instrumentation(enable_sensitive_data=True)
