"""An answer in the form of OpenAI Responses, built from the chunks of a chat completion.

A whole answer is built like a stream whose events are not sent, so both have the same content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agl_core.clocks import new_id, wall
from agl_core.interfaces import AnswerDelta, ReceivedToolCall, TokenUsage

__all__ = ["ResponseBuilder"]

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons for cut answers: finish reasons of chat completions to those of Responses."""
_ECHOED: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Fields of a request that its response repeats, with their defaults."""
_FIXED: Final[dict[str, Any]] = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


@dataclass(frozen=True, slots=True)
class _TextKind:
    """A kind of text in a message, such as reasoning."""

    item: str
    prefix: str
    part: str
    field: str
    event: str

    @property
    def extras(self) -> dict[str, Any]:
        """Further fields that clients expect with a text; the log-probabilities are empty."""
        return {"logprobs": []} if self.part == "output_text" else {}


_REASONING: Final = _TextKind(
    "reasoning", "rs", "reasoning_text", "text", "response.reasoning_text"
)
_TEXT: Final = _TextKind("message", "msg", "output_text", "text", "response.output_text")
_REFUSAL: Final = _TextKind("message", "msg", "refusal", "refusal", "response.refusal")


@dataclass(slots=True)
class _Open:
    """An output item that is not complete yet."""

    index: int
    item: dict[str, Any]
    kind: _TextKind | None = None
    """Kind of the text; None for a function call."""
    pieces: list[str] = field(default_factory=list[str])


class ResponseBuilder:
    """A builder that assembles a response and emits each step as an event.

    Implements `agl_core.interfaces.DialectAnswer`.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Create a builder; `asked` are the fields of the Responses request."""
        self._events: list[bytes] = []
        self._sequence = 0
        self._usage: TokenUsage | None = None
        self._finish: str | None = None
        self._begun = False
        self._text: _Open | None = None
        self._received: dict[int, ReceivedToolCall] = {}
        self._calls: dict[int, _Open] = {}
        """Function calls whose name is known, by their position."""
        self.response: dict[str, Any] = {
            "id": "",
            "object": "response",
            "created_at": int(wall()),
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": asked.get("model", ""),
            "output": [],
            "usage": None,
            **{name: asked.get(name, otherwise) for name, otherwise in _ECHOED.items()},
            **_FIXED,
        }

    def add(self, delta: AnswerDelta) -> bytes:
        if not self._begun:
            self._begin(delta)
        for kind, text in (
            (_REASONING, delta.reasoning),
            (_TEXT, delta.content),
            (_REFUSAL, delta.refusal),
            (_TEXT, delta.transcript),
        ):
            if text:
                self._add_text(kind, text)
        for call in delta.tool_calls:
            self._received[call.position] = call
            self._add_call(call)
        self._usage = delta.usage
        self._finish = delta.finish_reason or self._finish
        return self._taken()

    def end(self) -> bytes:
        self._close_all()
        self.response["usage"] = _usage(self._usage)
        reason = _INCOMPLETE.get(self._finish or "")
        status = "incomplete" if reason else "completed"
        self.response["status"] = status
        if reason:
            self.response["incomplete_details"] = {"reason": reason}
        else:
            self.response["completed_at"] = int(wall())
        self._emit(f"response.{status}", response=self.response)
        return self._taken()

    def document(self) -> bytes:
        return msgspec.json.encode(self.response)

    def fail(self, error: Mapping[str, Any]) -> bytes:
        stated = {
            "type": error.get("type") or "server_error",
            "code": error.get("code") or "server_error",
            "message": str(error.get("message") or "The answer broke off"),
            "param": error.get("param"),
        }
        flat = {name: stated[name] for name in ("code", "message", "param")}
        self._emit("error", **flat, error=stated)
        return self._taken()

    def _begin(self, delta: AnswerDelta) -> None:
        self._begun = True
        self.response["id"] = delta.id or new_id("resp")
        self._emit("response.created", response=self.response)
        self._emit("response.in_progress", response=self.response)

    def _emit(self, event: str, **fields: Any) -> None:
        content = {"type": event, "sequence_number": self._sequence, **fields}
        data = msgspec.json.encode(content, enc_hook=str)
        self._events.append(b"event: %b\ndata: %b\n\n" % (event.encode(), data))
        self._sequence += 1

    def _taken(self) -> bytes:
        events = b"".join(self._events)
        self._events.clear()
        return events

    def _open(self, item: dict[str, Any], kind: _TextKind | None = None) -> _Open:
        index = len(self.response["output"])
        self.response["output"].append(item)
        self._emit("response.output_item.added", output_index=index, item=item)
        return _Open(index, item, kind)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.response['id']}_{len(self.response['output'])}"

    def _add_text(self, kind: _TextKind, text: str) -> None:
        if self._text is None or self._text.kind is not kind:
            self._close_text()
            self._text = self._open_text(kind)
        self._text.pieces.append(text)
        self._emit(f"{kind.event}.delta", **_place(self._text), delta=text, **kind.extras)

    def _open_text(self, kind: _TextKind) -> _Open:
        item: dict[str, Any] = {
            "id": self._item_id(kind.prefix),
            "type": kind.item,
            "status": "in_progress",
        }
        item |= {"role": "assistant"} if kind.item == "message" else {"summary": []}
        opened = self._open({**item, "content": []}, kind)
        part: dict[str, Any] = {"type": kind.part, kind.field: "", **kind.extras}
        if kind is _TEXT:
            part["annotations"] = []
        opened.item["content"].append(part)
        self._emit("response.content_part.added", **_place(opened), part=part)
        return opened

    def _close_text(self, status: str = "completed") -> None:
        opened, self._text = self._text, None
        if opened is None or opened.kind is None:
            return
        kind, part = opened.kind, opened.item["content"][0]
        part[kind.field] = "".join(opened.pieces)
        text = {kind.field: part[kind.field], **kind.extras}
        self._emit(f"{kind.event}.done", **_place(opened), **text)
        self._emit("response.content_part.done", **_place(opened), part=part)
        self._close_item(opened, status)

    def _close_item(self, opened: _Open, status: str) -> None:
        opened.item["status"] = status
        self._emit("response.output_item.done", output_index=opened.index, item=opened.item)

    def _add_call(self, call: ReceivedToolCall, *, named: bool = True) -> None:
        """Send the new fragments of a function call; several calls may be interleaved."""
        if named and not call.name:
            return
        opened = self._calls.get(call.position)
        if opened is None:
            opened = self._calls[call.position] = self._open_call(call)
        opened.item["name"] = call.name
        for arguments in call.arguments[len(opened.pieces) :]:
            self._add_arguments(opened, arguments)

    def _open_call(self, call: ReceivedToolCall) -> _Open:
        self._close_text()
        item = {
            "id": self._item_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.id or new_id("call"),
            "name": call.name,
            "arguments": "",
        }
        return self._open(item)

    def _add_arguments(self, opened: _Open, arguments: str) -> None:
        opened.pieces.append(arguments)
        place = {"item_id": opened.item["id"], "output_index": opened.index}
        self._emit("response.function_call_arguments.delta", **place, delta=arguments)

    def _close_all(self) -> None:
        """Close all items at the end of the answer; only the last one can be cut."""
        for call in self._received.values():
            self._add_call(call, named=False)
        cut = "incomplete" if self._finish in _INCOMPLETE else "completed"
        silent = all(item["type"] == "reasoning" for item in self.response["output"])
        if silent and cut == "completed":
            self._close_text()
            self._text = self._open_text(_TEXT)
        self._close_text(cut)
        last = max(self._calls, default=None)
        for index, opened in sorted(self._calls.items()):
            arguments = opened.item["arguments"] = "".join(opened.pieces)
            place = {"item_id": opened.item["id"], "output_index": opened.index}
            done = {"name": opened.item["name"], "arguments": arguments}
            self._emit("response.function_call_arguments.done", **place, **done)
            self._close_item(opened, cut if index == last else "completed")
        self._calls.clear()


def _place(opened: _Open) -> dict[str, Any]:
    return {"item_id": opened.item["id"], "output_index": opened.index, "content_index": 0}


def _usage(usage: TokenUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    asked, sampled = usage.prompt_tokens or 0, usage.completion_tokens or 0
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": (prompt and prompt.cached_tokens) or 0,
            "cache_write_tokens": (prompt and prompt.cache_write_tokens) or 0,
        },
        "output_tokens": sampled,
        "output_tokens_details": {
            "reasoning_tokens": (completion and completion.reasoning_tokens) or 0
        },
        "total_tokens": usage.total_tokens or asked + sampled,
    }
