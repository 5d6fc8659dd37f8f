"""The fake server's answers in the OpenAI Responses form, translated as the gateway does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from agl_core.gateway.dialects.chat_answer import Payload
from agl_core.gateway.dialects.responses import ResponsesRequest
from agl_core.gateway.dialects.responses_output import Event, ResponseBuilder


def whole(asked: ResponsesRequest, payload: dict[str, Any]) -> dict[str, Any]:
    """A chat completion as a response."""
    builder = ResponseBuilder(asked.fields, lambda _: None)
    builder.feed(Payload(msgspec.json.encode(payload)), whole=True)
    builder.end()
    return builder.response


def streamed(asked: ResponsesRequest, chunks: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Chunks of a chat completion as the events of a response, one piece for each chunk."""
    events: list[bytes] = []

    def collect(event: Event) -> None:
        data = json.dumps(event, ensure_ascii=False)
        events.append(f"event: {event['type']}\ndata: {data}\n\n".encode())

    builder = ResponseBuilder(asked.fields, collect)
    for chunk in chunks:
        builder.feed(Payload(msgspec.json.encode(chunk)))
        yield b"".join(events)
        events.clear()
    builder.end()
    yield b"".join(events)
