"""LangChain: an agent of LangGraph that uses OpenAI's client."""

from __future__ import annotations

from typing import Any

from clock import Clock
from constant_model import PRICE, URL
from entries import enter_methods, enter_wrapt
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """Return a function that asks the agent."""
    model = ChatOpenAI(model="policy", base_url=URL, api_key="none")
    agent = create_agent(model, tools=[lookup], system_prompt="You keep a shop.", name="clerk")

    async def ask(question: str) -> None:
        messages = [{"role": "user", "content": question}]
        await agent.ainvoke({"messages": messages}, {"recursion_limit": 100})

    return ask


def instrument(provider: Any, clock: Clock) -> None:
    """Set OpenInference up: LangChain calls its tracer."""
    enter_wrapt(clock)
    from openinference.instrumentation.langchain import LangChainInstrumentor
    from openinference.instrumentation.langchain._tracer import OpenInferenceTracer

    enter_methods(clock, OpenInferenceTracer, "on_")
    LangChainInstrumentor().instrument(tracer_provider=provider)
