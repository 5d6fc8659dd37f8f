"""Any field of any request is something else: an answer or a refusal, and one record."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from tests.core.gateway.scripted import desk, plain
from tests.core.gateway.test_any_answer import JUNK, KINDS, Change

CASES = 1_000
FUNCTION = {"name": "add", "description": "d", "parameters": {"type": "object"}, "strict": True}
IMAGE = "data:image/png;base64,AA=="
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["x"], "top_k": -1, "user": "u"}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": IMAGE}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "3"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "add"}},
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
    "n": 1,
    "logit_bias": {"5": 1},
    "metadata": {"a": "b"},
    **SAMPLING,
}
RESPONSES: dict[str, Any] = {
    "instructions": "i",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "image_url": IMAGE, "detail": "low"},
            ],
        },
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "ho"}]},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "3"},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "function", "name": "add"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 5,
    "include": ["reasoning.encrypted_content"],
    "store": False,
    **SAMPLING,
}


async def test_any_request_is_answered_or_refused_and_recorded_once(record_property: Any) -> None:
    """A1: no field of a request costs its client an answer, or the attempt a record."""
    random, answered = Random(11), 0
    async with desk() as at:
        await at.answer(plain({"content": "hi"}))
        for _ in range(CASES):
            dialect = random.choice(["chat", "responses"])
            document = copy.deepcopy(CHAT if dialect == "chat" else RESPONSES)
            change = Change(random.randrange(200), random.choice(KINDS), random.choice(JUNK))
            change.apply(document)
            attempt = await at.attempt()
            agent = random.choice(["writer", "judge"])
            got = await at.ask(attempt, dialect, agent=agent, **document)
            assert got.status in (200, 400), (change, got.body)
            answered += got.status == 200
            (call,) = await at.calls(attempt)
            assert call.status_code == got.status
            assert call.complete or call.error
    record_property("cases", CASES)
    assert 0 < answered < CASES
