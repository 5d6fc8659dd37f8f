"""OpenAI's plain client, and a loop that calls the tools."""

from __future__ import annotations

import json
from typing import Any

from clock import Clock
from constant_model import PRICE, TOOL, URL
from entries import enter_wrapt
from openai import AsyncOpenAI

CALLS_TOOLS = True
"""The program calls the tools itself."""
_TOOL = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Look up what an item costs.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}},
            "required": ["item"],
        },
    },
}


async def lookup(item: str) -> str:
    return PRICE


def program() -> Any:
    """Return a function that asks the model until it calls no tool."""
    client = AsyncOpenAI(base_url=URL, api_key="none")

    async def ask(question: str) -> None:
        messages: list[Any] = [
            {"role": "system", "content": "You keep a shop."},
            {"role": "user", "content": question},
        ]
        while True:
            response = await client.chat.completions.create(
                model="policy", messages=messages, tools=[_TOOL]
            )
            message = response.choices[0].message
            if not message.tool_calls:
                return
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                content = await lookup(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    return ask


def instrument(provider: Any, clock: Clock) -> None:
    """Set OpenInference up."""
    enter_wrapt(clock)
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
