"""The conversation of a Responses request, as messages of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from agl_core.interfaces import Problem

__all__ = ["messages_of", "refuse"]

_ROLES: Final = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
"""Roles of messages; chat templates of open models have no role ``developer``."""
_TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_READABLE: Final = "'message', 'function_call', 'function_call_output' and 'reasoning'"


def refuse(field: str, value: Any, fix: str, *, code: str = "unsupported_parameter") -> Problem:
    """Return the error for a field that the gateway cannot serve."""
    return Problem(400, code, f"{field}: cannot serve {value!r:.200}: {fix}", param=field)


def messages_of(instructions: Any, given: Any) -> list[dict[str, Any]]:
    """Return the messages of a conversation.

    The assistant's items between two inputs (reasoning, text, function calls) become one message,
    as they were sampled.

    Args:
        instructions: Text, or items as in an input.
        given: The input: text or items.

    Raises:
        Problem: 400, an item has no counterpart; the error names it.
    """
    conversation = _Conversation()
    if isinstance(instructions, str):
        conversation.say("system", instructions)
    elif instructions is not None:
        conversation.take("instructions", instructions)
    if isinstance(given, str):
        conversation.say("user", given)
    else:
        conversation.take("input", given)
    return conversation.messages


class _Conversation:
    """The messages so far, and the assistant's turn that further items may extend."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None

    def say(self, role: str, content: Any) -> None:
        self._turn = None
        self.messages.append({"role": role, "content": content})

    def take(self, field: str, items: Any) -> None:
        if not isinstance(items, list):
            raise refuse(field, items, "send text or a list of items", code="invalid_value")
        for index, item in enumerate(cast("list[Any]", items)):
            where = f"{field}[{index}]"
            if not isinstance(item, dict):
                raise refuse(where, item, "send an object", code="invalid_value")
            self._take_item(where, cast("dict[str, Any]", item))

    def _take_item(self, where: str, item: Mapping[str, Any]) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(where, item)
        elif kind == "function_call":
            self._function_call(where, item)
        elif kind == "function_call_output":
            output = _content(f"{where}.output", item.get("output"), only_text=True)
            call_id = _string(where, item, "call_id")
            self.say("tool", output)
            self.messages[-1]["tool_call_id"] = call_id
        elif kind == "reasoning":
            self._reasoning(where, item)
        elif kind == "item_reference":
            raise refuse(f"{where}.type", kind, "nothing is stored here: send the item itself")
        else:
            fix = f"items of type {_READABLE} can be read: leave this one out"
            raise refuse(f"{where}.type", kind, fix)

    def _message(self, where: str, item: Mapping[str, Any]) -> None:
        role = _ROLES.get(_string(where, item, "role"))
        if role is None:
            fix = f"use one of {', '.join(_ROLES)}"
            raise refuse(f"{where}.role", item["role"], fix, code="invalid_value")
        content = _content(f"{where}.content", item.get("content"), only_text=role == "assistant")
        if role != "assistant":
            self.say(role, content)
            return
        turn = self._open_turn()
        if turn["content"] is not None:
            self._turn = None
            turn = self._open_turn()
        turn["content"] = content

    def _function_call(self, where: str, item: Mapping[str, Any]) -> None:
        call = {
            "id": _string(where, item, "call_id"),
            "type": "function",
            "function": {
                "name": _string(where, item, "name"),
                "arguments": _string(where, item, "arguments"),
            },
        }
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _reasoning(self, where: str, item: Mapping[str, Any]) -> None:
        """Add readable reasoning; encrypted reasoning is another provider's and is dropped."""
        parts: Any = item.get("content") or item.get("summary") or ""
        text = _content(f"{where}.content", parts, only_text=True)
        if not text:
            return
        if self._turn is not None and (self._turn["content"] or "tool_calls" in self._turn):
            self._turn = None
        turn = self._open_turn()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def _open_turn(self) -> dict[str, Any]:
        if self._turn is None:
            self._turn = {"role": "assistant", "content": None}
            self.messages.append(self._turn)
        return self._turn


def _string(where: str, item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refuse(f"{where}.{name}", value, "send a string", code="invalid_value")
    return value


def _content(where: str, content: Any, *, only_text: bool) -> Any:
    """Return one text part, or parts that may only be text, as a text; other parts as a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refuse(where, content, "send text or a list of parts", code="invalid_value")
    rows = cast("list[Any]", content)
    parts = [_part(f"{where}[{index}]", part) for index, part in enumerate(rows)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if len(texts) == len(parts) and (only_text or len(parts) == 1):
        return "".join(texts)
    if only_text:
        index = next(index for index, part in enumerate(parts) if part["type"] != "text")
        raise refuse(f"{where}[{index}].type", rows[index]["type"], "only text can be said here")
    return parts


def _part(where: str, part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise refuse(where, part, "send an object", code="invalid_value")
    fields = cast("dict[str, Any]", part)
    kind = fields.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": _string(where, fields, "text")}
    if kind == "refusal":
        return {"type": "text", "text": _string(where, fields, "refusal")}
    if kind == "input_image" and fields.get("image_url"):
        image = {"url": fields["image_url"], "detail": fields.get("detail")}
        return {"type": "image_url", "image_url": {k: v for k, v in image.items() if v}}
    fix = "send text, or an image as 'image_url': files and audio are not kept here"
    raise refuse(f"{where}.type", kind, fix)
