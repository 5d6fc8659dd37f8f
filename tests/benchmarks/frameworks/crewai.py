"""CrewAI with a single agent."""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TESTING": "true",
    "CREWAI_TRACING_ENABLED": "false",
}

from clock import Clock
from constant_model import PRICE, TOOL, URL
from crewai import LLM, Agent
from crewai.events.event_listener import EventListener
from crewai.tools import tool
from entries import enter_wrapt

EventListener().formatter.verbose = False  # as in a crew that is not verbose


@tool(TOOL)
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """Return a function that asks the agent in a thread, as in a sync program."""
    clerk = Agent(
        role="clerk",
        goal="Answer.",
        backstory="You keep a shop.",
        llm=LLM(model="policy", provider="openai", base_url=URL, api_key="none"),
        tools=[lookup],
        max_iter=100,
        respect_context_window=False,
        use_better_compaction=False,
    )

    async def ask(question: str) -> None:
        await asyncio.to_thread(clerk.kickoff, question)

    return ask


def instrument(provider: Any, clock: Clock) -> None:
    """Set OpenInference up: it instruments CrewAI, and model calls through the client."""
    enter_wrapt(clock)
    from openinference.instrumentation.crewai import CrewAIInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    CrewAIInstrumentor().instrument(tracer_provider=provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
