"""An agent that chooses a meeting room by one availability tool, on the OpenAI client.

The program contains no training code and no line about the tuning of prompts. The environment
variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from office import TOOL, availability
from openai import OpenAI

MODEL = "gpt-4o-mini"
SYSTEM = "You choose a room for the {team} team. Call find_rooms and answer with a name."
MOST_CALLS = 3
"""Most calls of the tool for a request."""


def choose(request: str, team: str) -> str:
    """Return the room that the agent chooses; empty if it never answers."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM.format(team=team)},
        {"role": "user", "content": request},
    ]
    for _ in range(MOST_CALLS + 1):
        reply = client().chat.completions.create(
            model=MODEL, messages=messages, tools=[TOOL], max_completion_tokens=64
        )
        message = reply.choices[0].message
        if not message.tool_calls:
            return (message.content or "").strip()
        messages.append(message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": looked_up(call.function)}
            for call in message.tool_calls
        ]
    return ""


def looked_up(function: Any) -> str:
    """Return the result of a call of the tool, which the model may have written wrongly."""
    if function.name != TOOL["function"]["name"]:
        return f"error: unknown tool {function.name!r}"
    try:
        arguments = json.loads(function.arguments)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return "error: the arguments are not a JSON object"
    return availability(arguments)


@cache
def client() -> OpenAI:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAI()
