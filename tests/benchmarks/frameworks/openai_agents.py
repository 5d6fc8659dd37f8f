"""The OpenAI Agents SDK with chat completions."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_trace_processors,
)
from clock import Clock
from constant_model import PRICE, URL
from entries import enter_methods, enter_wrapt
from openai import AsyncOpenAI

set_trace_processors([])  # the SDK would send traces to OpenAI


@function_tool
async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """Return a function that asks the agent."""
    client = AsyncOpenAI(base_url=URL, api_key="none")
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
    agent = Agent(name="clerk", instructions="You keep a shop.", model=model, tools=[lookup])

    async def ask(question: str) -> None:
        await Runner.run(agent, question, max_turns=100)

    return ask


def instrument(provider: Any, clock: Clock) -> None:
    """Set OpenInference up: the SDK calls its processor."""
    enter_wrapt(clock)
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
    from openinference.instrumentation.openai_agents._processor import (
        OpenInferenceTracingProcessor,
    )

    enter_methods(clock, OpenInferenceTracingProcessor, "on_")
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
