"""Chat completion requests to a backend, and parsed answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agl_core.gateway import Route
from agl_core.interfaces import Backend
from agl_core.types import Policy

TEXT: Final = "What is the price of a red lamp?"


@dataclass(slots=True)
class ChatChoice:
    """One choice, assembled from a whole answer or from a stream's chunks."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish: str | None = None


@dataclass(slots=True)
class ChatAnswer:
    """A whole answer."""

    status: int
    error: str = ""
    """The body of an error answer."""
    ids: set[str] = field(default_factory=set[str])
    """Response ids of the document, or of all events of a stream."""
    prompt: list[int] = field(default_factory=list[int])
    choices: list[ChatChoice] = field(default_factory=list[ChatChoice])


def request(policy: Policy, backend: Backend, content: Any = TEXT, **fields: Any) -> bytes:
    """Return the body of a request as the gateway sends it."""
    return msgspec.json.encode(
        {
            "model": Route(policy, backend).upstream_model,
            "messages": [{"role": "user", "content": content}],
            "logprobs": True,
            "return_token_ids": True,
            "max_tokens": 8,
            **fields,
        }
    )


async def ask(backend: Backend, body: bytes, *, timeout_s: float = 60.0) -> ChatAnswer:
    """Send a request and read its whole answer.

    Raises:
        EngineError: there is no answer, or the connection breaks.
    """
    reply = await backend.chat(body, headers={}, timeout_s=timeout_s)
    try:
        content = b"".join([chunk async for chunk in reply.body()])
    finally:
        await reply.close()
    if reply.status != 200:
        return ChatAnswer(reply.status, content.decode(errors="replace"))
    answer, choices = ChatAnswer(reply.status), dict[int, ChatChoice]()
    for document in _documents(content):
        answer.ids.add(document["id"])
        answer.prompt += document.get("prompt_token_ids") or []
        for row in document.get("choices", []):
            _add(choices.setdefault(row["index"], ChatChoice()), row)
    answer.choices = [choices[index] for index in sorted(choices)]
    return answer


def _documents(content: bytes) -> list[Any]:
    if not content.startswith(b"data:"):
        return [msgspec.json.decode(content)]
    events = [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]
    assert events[-1] == b"[DONE]", f"A stream ends with [DONE], not with {events[-1]!r}"
    return [msgspec.json.decode(event) for event in events[:-1]]


def _add(choice: ChatChoice, row: Any) -> None:
    said: dict[str, Any] = row.get("message") or row.get("delta") or {}
    entries: list[Any] = (row.get("logprobs") or {}).get("content") or []
    choice.text += said.get("content") or ""
    choice.token_ids += row.get("token_ids") or []
    choice.logprobs += [entry["logprob"] for entry in entries]
    choice.finish = row.get("finish_reason") or choice.finish
