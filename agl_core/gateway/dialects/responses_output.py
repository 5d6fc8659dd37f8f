"""OpenAI Responses: an answer in that form, from a whole chat completion or from its chunks.

A whole answer is a stream of one chunk whose events nobody hears, so both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agl_core.clocks import wall
from agl_core.gateway.dialects.answer_fields import Function, Message, Usage
from agl_core.gateway.dialects.chat import FINISH_REASONS
from agl_core.gateway.dialects.chat_answer import Payload
from agl_core.gateway.dialects.tool_calls import CallPart, ToolCall, ToolCalls, plain_text
from agl_core.types.ids import new_id

__all__ = ["Event", "ResponseBuilder"]

Event = dict[str, Any]
Emit = Callable[[Event], None]

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that were cut, and Responses' words for why."""
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
"""Fields of a request that its response repeats, with what stands there otherwise."""
_FIXED: Final[dict[str, Any]] = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


@dataclass(frozen=True, slots=True)
class _TextKind:
    """One of the texts that a message consists of."""

    item: str
    prefix: str
    part: str
    field: str
    event: str

    @property
    def extras(self) -> dict[str, Any]:
        """What clients expect beside a text and its parts; log-probabilities are not given."""
        return {"logprobs": []} if self.part == "output_text" else {}


_REASONING: Final = _TextKind(
    "reasoning", "rs", "reasoning_text", "text", "response.reasoning_text"
)
_TEXT: Final = _TextKind("message", "msg", "output_text", "text", "response.output_text")
_REFUSAL: Final = _TextKind("message", "msg", "refusal", "refusal", "response.refusal")


@dataclass(slots=True)
class _Open:
    """An output item that is still growing."""

    index: int
    item: dict[str, Any]
    kind: _TextKind | None = None
    """None: a function call."""
    pieces: list[str] = field(default_factory=list[str])


class ResponseBuilder:
    """Puts a response together from chunks of a chat completion and tells each step as an event."""

    def __init__(self, asked: Mapping[str, Any], emit: Emit) -> None:
        """Begin.

        Args:
            asked: Fields of the Responses request.
            emit: Takes each event at once; it may not keep it.
        """
        self._emit = emit
        self._sequence = 0
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._begun = False
        self._text: _Open | None = None
        self._parts = ToolCalls()
        self._calls: dict[int, _Open] = {}
        """By the position of the call."""
        self._function: ToolCall | None = None
        """A call in the older form."""
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

    @property
    def finished(self) -> bool:
        """The backend has said how its answer ended, and that it reached its end."""
        return self._finish in FINISH_REASONS

    @property
    def given_up(self) -> dict[str, str]:
        """The message of an answer whose finish reason is not that of one that reached its end."""
        if self._finish is None or self.finished:
            return {}
        return {"message": f"The backend gave its answer up with finish reason {self._finish!r}"}

    def feed(self, chunk: Payload, *, whole: bool = False) -> None:
        """Take a chunk, or a whole chat completion."""
        if not self._begun:
            self._begin(chunk)
        if chunk.usage is not None and (chunk.usage.stated or self._usage is None):
            self._usage = chunk.usage
        rows = chunk.choices or []
        for row in rows[:1] if whole else rows:
            said = row.message or row.delta if whole else row.delta or row.message
            if row.index and not whole:
                continue
            if said is not None:
                self._add(said, whole=whole)
            self._finish = row.finish_reason or self._finish

    def end(self) -> None:
        """Say how it ended; the answer must have `finished`."""
        self._close_all()
        self.response["usage"] = _usage(self._usage)
        reason = _INCOMPLETE.get(self._finish or "")
        status = "incomplete" if reason else "completed"
        self.response["status"] = status
        if reason:
            self.response["incomplete_details"] = {"reason": reason}
        else:
            self.response["completed_at"] = int(wall())
        self._tell(f"response.{status}", response=self.response)

    def fail(self, error: Mapping[str, Any]) -> None:
        """Say that there will be no more; in a form on which every client raises."""
        told = {
            "type": error.get("type") or "server_error",
            "code": error.get("code") or "server_error",
            "message": str(error.get("message") or "The answer broke off"),
            "param": error.get("param"),
        }
        flat = {name: told[name] for name in ("code", "message", "param")}
        self._tell("error", **flat, error=told)

    def _begin(self, chunk: Payload) -> None:
        self._begun = True
        self.response["id"] = chunk.id or new_id("resp")
        self._tell("response.created", response=self.response)
        self._tell("response.in_progress", response=self.response)

    def _tell(self, event: str, **fields: Any) -> None:
        self._emit({"type": event, "sequence_number": self._sequence, **fields})
        self._sequence += 1

    def _add(self, delta: Message, *, whole: bool) -> None:
        if reasoning := delta.reasoning_content or delta.reasoning:
            self._add_text(_REASONING, plain_text(reasoning))
        if delta.content:
            self._add_text(_TEXT, plain_text(delta.content))
        if delta.refusal:
            self._add_text(_REFUSAL, plain_text(delta.refusal))
        if delta.audio is not None and delta.audio.transcript:
            self._add_text(_TEXT, delta.audio.transcript)
        for call in self._parts.add(delta.tool_calls or [], whole=whole):
            self._add_call(call)
        if delta.function_call is not None:
            self._add_function(delta.function_call)

    def _open(self, item: dict[str, Any], kind: _TextKind | None = None) -> _Open:
        index = len(self.response["output"])
        self.response["output"].append(item)
        self._tell("response.output_item.added", output_index=index, item=item)
        return _Open(index, item, kind)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.response['id']}_{len(self.response['output'])}"

    def _add_text(self, kind: _TextKind, text: str) -> None:
        if self._text is None or self._text.kind is not kind:
            self._close_text()
            self._text = self._open_text(kind)
        self._text.pieces.append(text)
        self._tell(f"{kind.event}.delta", **_place(self._text), delta=text, **kind.extras)

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
        self._tell("response.content_part.added", **_place(opened), part=part)
        return opened

    def _close_text(self, status: str = "completed") -> None:
        opened, self._text = self._text, None
        if opened is None or opened.kind is None:
            return
        kind, part = opened.kind, opened.item["content"][0]
        part[kind.field] = "".join(opened.pieces)
        told = {kind.field: part[kind.field], **kind.extras}
        self._tell(f"{kind.event}.done", **_place(opened), **told)
        self._tell("response.content_part.done", **_place(opened), part=part)
        self._close_item(opened, status)

    def _close_item(self, opened: _Open, status: str) -> None:
        opened.item["status"] = status
        self._tell("response.output_item.done", output_index=opened.index, item=opened.item)

    def _add_function(self, part: Function) -> None:
        if self._function is None:
            self._function = ToolCall(-1, None)
        self._function.add(CallPart(function=part))
        self._add_call(self._function)

    def _add_call(self, call: ToolCall, *, named: bool = True) -> None:
        """Send the new fragments of a function call; several calls may be interleaved."""
        if named and not call.name:
            return
        opened = self._calls.get(call.position)
        if opened is None:
            opened = self._calls[call.position] = self._open_call(call)
        opened.item["name"] = call.name
        for arguments in call.arguments[len(opened.pieces) :]:
            self._add_arguments(opened, arguments)

    def _open_call(self, call: ToolCall) -> _Open:
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
        self._tell("response.function_call_arguments.delta", **place, delta=arguments)

    def _close_all(self) -> None:
        """Everything is said; what was cut is the last item."""
        for call in [*self._parts.calls, *([self._function] if self._function else [])]:
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
            self._tell("response.function_call_arguments.done", **place, **done)
            self._close_item(opened, cut if index == last else "completed")
        self._calls.clear()


def _place(opened: _Open) -> dict[str, Any]:
    return {"item_id": opened.item["id"], "output_index": opened.index, "content_index": 0}


def _usage(usage: Usage | None) -> dict[str, Any] | None:
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
