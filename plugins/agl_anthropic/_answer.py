"""An answer in the form of Anthropic Messages, built from the chunks of a chat completion.

A whole answer is built like a stream whose events are not sent, so both have the same content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agl_anthropic._conversation import INVALID_JSON
from agl_core.clocks import new_id
from agl_core.interfaces import AnswerDelta, ReceivedToolCall, TokenUsage

_STOP_REASONS: Final = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""Finish reasons of chat completions to stop reasons; any other is ``end_turn``."""
_UPDATES: Final = {"text": "text_delta", "thinking": "thinking_delta"}


@dataclass(slots=True)
class _Open:
    """A block that is not complete yet."""

    index: int
    block: dict[str, Any]
    pieces: list[str] = field(default_factory=list[str])


class MessageBuilder:
    """A builder that assembles a message and emits each step as an event.

    Implements `agl_core.interfaces.DialectAnswer`.
    """

    def __init__(self, model: str) -> None:
        """Create a builder; `model` is the one that the request names."""
        self._events: list[bytes] = []
        self._usage: TokenUsage | None = None
        self._finish: str | None = None
        self._text: _Open | None = None
        self._received: dict[int, ReceivedToolCall] = {}
        self._calls: dict[int, _Open] = {}
        """Blocks of tool calls whose name is known, by their position."""
        self.message: dict[str, Any] = {
            "id": "",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(None),
        }

    def add(self, delta: AnswerDelta) -> bytes:
        if not self.message["id"]:
            self.message["id"] = delta.id or new_id("msg")
            self._emit("message_start", message=self.message)
        self._add_text("thinking", delta.reasoning)
        self._add_text("text", delta.content + delta.refusal + delta.transcript)
        for call in delta.tool_calls:
            self._received[call.position] = call
            self._add_call(call)
        self._usage = delta.usage
        self._finish = delta.finish_reason or self._finish
        return self._taken()

    def end(self) -> bytes:
        for call in self._received.values():
            self._add_call(call, named=False)
        self._close_text()
        for opened in self._calls.values():
            opened.block["input"] = _input("".join(opened.pieces))
            self._emit("content_block_stop", index=opened.index)
        self._calls.clear()
        stopped = {
            "stop_reason": _STOP_REASONS.get(self._finish or "", "end_turn"),
            "stop_sequence": None,
        }
        self.message |= stopped | {"usage": _usage(self._usage)}
        self._emit("message_delta", delta=stopped, usage=self.message["usage"])
        self._emit("message_stop")
        return self._taken()

    def document(self) -> bytes:
        return msgspec.json.encode(self.message)

    def fail(self, error: Mapping[str, Any]) -> bytes:
        message = str(error.get("message") or "The answer broke off")
        self._emit("error", error={"type": "api_error", "message": message})
        return self._taken()

    def _emit(self, event: str, **fields: Any) -> None:
        data = msgspec.json.encode({"type": event, **fields}, enc_hook=str)
        self._events.append(b"event: %b\ndata: %b\n\n" % (event.encode(), data))

    def _taken(self) -> bytes:
        events = b"".join(self._events)
        self._events.clear()
        return events

    def _open(self, block: dict[str, Any]) -> _Open:
        opened = _Open(len(self.message["content"]), block)
        self.message["content"].append(block)
        self._emit("content_block_start", index=opened.index, content_block=block)
        return opened

    def _add_text(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._text is None or self._text.block["type"] != kind:
            self._close_text()
            # Only Anthropic's servers sign thinking; an empty signature is what others send.
            signature = {"signature": ""} if kind == "thinking" else {}
            self._text = self._open({"type": kind, kind: "", **signature})
        self._text.pieces.append(text)
        update = {"type": _UPDATES[kind], kind: text}
        self._emit("content_block_delta", index=self._text.index, delta=update)

    def _close_text(self) -> None:
        opened, self._text = self._text, None
        if opened is not None:
            opened.block[opened.block["type"]] = "".join(opened.pieces)
            self._emit("content_block_stop", index=opened.index)

    def _add_call(self, call: ReceivedToolCall, *, named: bool = True) -> None:
        """Send the new fragments of a tool call; several calls may be interleaved."""
        if named and not call.name:
            return
        opened = self._calls.get(call.position)
        if opened is None:
            self._close_text()
            block = {"type": "tool_use", "id": call.id or new_id("toolu"), "name": call.name}
            opened = self._calls[call.position] = self._open({**block, "input": {}})
        opened.block["name"] = call.name
        for text in call.arguments[len(opened.pieces) :]:
            opened.pieces.append(text)
            update = {"type": "input_json_delta", "partial_json": text}
            self._emit("content_block_delta", index=opened.index, delta=update)


def _input(arguments: str) -> dict[str, Any]:
    """Return a tool's input; a text that is no JSON object is kept whole under one key."""
    if not arguments:
        return {}
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {INVALID_JSON: arguments}


def _usage(usage: TokenUsage | None) -> dict[str, int]:
    """Return the counts of tokens; those of a cached part of the prompt are apart."""
    prompt = (usage and usage.prompt_tokens) or 0
    details = usage.prompt_tokens_details if usage is not None else None
    cached = min((details and details.cached_tokens) or 0, prompt)
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": (usage and usage.completion_tokens) or 0,
    }
