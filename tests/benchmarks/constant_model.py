"""A model that answers in this process: it replaces the connection below the client's `send`.

It follows a script with an answer for each request, the same for every framework and side.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

URL = "http://127.0.0.1:8000/v1"
TOOL = "lookup"
PRICE = "A lamp costs 12 euros."

MORE = 10
SCRIPTS: dict[str, tuple[int, ...]] = {
    "answer": (0,),
    "one_tool": (1, 0),
    "many_tools": (1 + MORE, 0),
    "many_calls": (1,) * (1 + MORE) + (0,),
}
"""Number of tools that each answer calls, by program; the last answer calls none."""


class ConstantModel:
    """A model that answers the requests of one program after another."""

    def __init__(self) -> None:
        self._answers: list[bytes] = []

    def expect(self, program: str) -> None:
        """Start a program's script; the previous one must have ended."""
        if self._answers:
            raise RuntimeError(f"the program before {program!r} left {len(self._answers)} answers")
        self._answers = [_answer(*each) for each in enumerate(SCRIPTS[program])][::-1]

    def install(self) -> None:
        """Replace all connections of httpx and httpx2."""
        for library in [import_module(name) for name in ("httpx", "httpx2") if find_spec(name)]:
            self._replace(library)

    def _replace(self, library: Any) -> None:
        headers = {"content-type": "application/json"}

        def answer(transport: Any, request: Any) -> Any:
            request.read()
            return library.Response(200, headers=headers, content=self._answers.pop())

        async def answer_async(transport: Any, request: Any) -> Any:
            await request.aread()
            return library.Response(200, headers=headers, content=self._answers.pop())

        library.HTTPTransport.handle_request = answer
        library.AsyncHTTPTransport.handle_async_request = answer_async


def _answer(number: int, tools: int) -> bytes:
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": TOOL, "arguments": json.dumps({"item": f"lamp {number}.{index}"})},
        }
        for index in range(tools)
    ]
    message = {"role": "assistant", "content": None if calls else PRICE}
    body = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": message | ({"tool_calls": calls} if calls else {}),
                "finish_reason": "tool_calls" if calls else "stop",
            }
        ],
        "usage": {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220},
    }
    return json.dumps(body).encode()
