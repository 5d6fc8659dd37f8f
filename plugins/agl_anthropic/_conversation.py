"""The conversation of a Messages request, as messages of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from agl_core.interfaces import Problem

INVALID_JSON: Final = "INVALID_JSON"
"""The only key of a tool input that was sampled as no JSON object; its value is the text."""

_ENCRYPTED: Final = "redacted_thinking"
_READABLE: Final = "'text', 'image', 'document', 'thinking', 'tool_use' and 'tool_result'"


def refuse(field: str, value: Any, fix: str) -> Problem:
    """Return the error for a field that the gateway cannot serve."""
    message = f"{field}: cannot serve {value!r:.200}: {fix}"
    return Problem(400, "invalid_request_error", message, param=field)


def messages_of(system: Any, given: Any) -> list[dict[str, Any]]:
    """Return the messages of a conversation.

    A tool's input becomes JSON text with a blank after each comma and colon, as chat templates write
    it. Thinking that another provider encrypted is dropped.

    Args:
        system: The request's ``system``: text, or blocks of text; None without one.
        given: The request's ``messages``.

    Raises:
        Problem: 400, a block has no counterpart; the error names it.
    """
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": text_of("system", system)})
    for index, message in enumerate(rows("messages", given)):
        where = f"messages[{index}]"
        fields = mapping(where, message)
        role, content = fields.get("role"), fields.get("content")
        if role == "assistant":
            messages.append(_assistant(f"{where}.content", content))
        elif role == "user":
            messages.extend(_user(f"{where}.content", content))
        elif role == "system":
            messages.append({"role": role, "content": text_of(f"{where}.content", content)})
        else:
            raise refuse(f"{where}.role", role, "use 'user' or 'assistant'")
    return messages


def rows(field: str, value: Any) -> list[Any]:
    """Return a list, or refuse the field."""
    if not isinstance(value, list):
        raise refuse(field, value, "send a list")
    return cast("list[Any]", value)


def mapping(field: str, value: Any) -> dict[str, Any]:
    """Return an object, or refuse the field."""
    if not isinstance(value, dict):
        raise refuse(field, value, "send an object")
    return cast("dict[str, Any]", value)


def text_of(field: str, content: Any) -> str:
    """Return the text of a string or of blocks of text, or refuse the field."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for where, block in _blocks(field, content):
        if block.get("type") != "text":
            raise refuse(f"{where}.type", block.get("type"), "only text can be said here")
        texts.append(string(where, block, "text"))
    return "".join(texts)


def string(where: str, fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text, or refuse it."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise refuse(f"{where}.{name}", value, "send a string")
    return value


def _blocks(field: str, content: Any) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for index, block in enumerate(rows(field, content)):
        where = f"{field}[{index}]"
        found.append((where, mapping(where, block)))
    return found


def _assistant(field: str, content: Any) -> dict[str, Any]:
    """Return one message: what was sampled in one answer stays together."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for where, block in _blocks(field, content):
        kind = block.get("type")
        if kind == "text":
            texts.append(string(where, block, "text"))
        elif kind == "thinking":
            thinking.append(string(where, block, "thinking"))
        elif kind == "tool_use":
            calls.append(_call(where, block))
        elif kind != _ENCRYPTED:
            raise refuse(f"{where}.type", kind, f"only blocks of type {_READABLE} can be read")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thinking:
        message["reasoning_content"] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    given = mapping(f"{where}.input", block.get("input"))
    invalid = given.get(INVALID_JSON)
    raw = len(given) == 1 and isinstance(invalid, str)
    function = {
        "name": string(where, block, "name"),
        "arguments": invalid if raw else json.dumps(given, ensure_ascii=False),
    }
    return {"id": string(where, block, "id"), "type": "function", "function": function}


def _user(field: str, content: Any) -> list[dict[str, Any]]:
    """Return the results of tools as a message each, and what the user says."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for where, block in _blocks(field, content):
        if block.get("type") == "tool_result":
            _say(messages, parts)
            messages.append(_result(where, block))
        else:
            parts.append(_part(where, block))
    _say(messages, parts)
    return messages


def _say(messages: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Add the parts as a message of the user; only texts become one text."""
    if not parts:
        return
    texts = [part["text"] for part in parts if part["type"] == "text"]
    only_text = len(texts) == len(parts)
    messages.append({"role": "user", "content": "".join(texts) if only_text else [*parts]})
    parts.clear()


def _result(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    said: Any = "" if content is None else content
    if not isinstance(said, str):
        parts = [_part(place, part) for place, part in _blocks(f"{where}.content", said)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        said = "".join(texts) if len(texts) == len(parts) else parts
    return {"role": "tool", "content": said, "tool_call_id": string(where, block, "tool_use_id")}


def _part(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": string(where, block, "text")}
    if kind not in ("image", "document"):
        raise refuse(f"{where}.type", kind, f"only blocks of type {_READABLE} can be read")
    source = mapping(f"{where}.source", block.get("source"))
    form = source.get("type")
    if kind == "document" and form == "text":
        return {"type": "text", "text": string(f"{where}.source", source, "data")}
    if kind == "image" and form == "url":
        url = string(f"{where}.source", source, "url")
    elif kind == "image" and form == "base64":
        media = string(f"{where}.source", source, "media_type")
        url = f"data:{media};base64,{string(f'{where}.source', source, 'data')}"
    else:
        fix = (
            "send an image as 'base64' or 'url', and a document as 'text': files are not kept here"
        )
        raise refuse(f"{where}.source.type", form, fix)
    return {"type": "image_url", "image_url": {"url": url}}
