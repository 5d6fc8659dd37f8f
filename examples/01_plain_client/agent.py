"""A shop assistant of two agents that uses only the OpenAI client.

The planner calls a tool, and the writer reports the result. The program contains no training code.
"""

from __future__ import annotations

import json
from functools import cache

from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from openai import OpenAI

MODEL = "gpt-4o-mini"
SORRY = "Sorry, I could not find that item."
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up what an item costs.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}},
            "required": ["item"],
        },
    },
}


@cache
def client() -> OpenAI:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAI()


def plan(question: str) -> str | None:
    """Ask the planner for a tool call and run it; return None if there is no result."""
    reply = client().chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": PLANNER_SYSTEM},
            {"role": "user", "content": question},
        ],
        tools=[LOOKUP],
    )
    calls = reply.choices[0].message.tool_calls
    if not calls:
        return None
    try:
        return lookup_price(**json.loads(calls[0].function.arguments))
    except (TypeError, ValueError):
        return None


def write(question: str, result: str) -> str:
    """Let the writer report the result in one sentence."""
    reply = client().chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": WRITER_SYSTEM},
            {"role": "user", "content": writer_request(question, result)},
        ],
    )
    return reply.choices[0].message.content or ""


def answer(question: str) -> str:
    """Answer one customer."""
    result = plan(question)
    return SORRY if result is None else write(question, result)
