"""Messages of calls as parts to show: text, thinking, tool calls, images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from agl_core.thinking import split_thinking
from agl_core.types import ModelCall
from agl_dashboard._text import ShownText, cut, pretty

ShownKind = Literal["text", "thinking", "code", "image", "refusal"]

_IMAGE: Final = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+")
_MOST_OF_AN_IMAGE: Final = 8_000_000
_RECENT: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """One part of a message."""

    kind: ShownKind
    cut: ShownText
    title: str = ""
    path: str = ""
    """Where the whole text is in the record; empty if the text was put together."""
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """Something that was said."""

    role: str
    parts: list[ShownPart]
    note: str = ""


def conversation(call: ModelCall, *, every: bool) -> tuple[list[ShownMessage], int]:
    """Return the messages of a call's prompt, and how many older ones are left out.

    Args:
        call: The call.
        every: Leave out none.
    """
    left_out = 0 if every else max(len(call.messages) - _RECENT, 0)
    shown = [*enumerate(call.messages)]
    if left_out:
        shown = [shown[0], *shown[left_out + 1 :]]
    return [_message(at, each, call.thinking_tags) for at, each in shown], left_out


def answers(call: ModelCall) -> list[ShownMessage]:
    """Return the choices of a call."""
    found: list[ShownMessage] = []
    for at, choice in enumerate(call.choices):
        path = f"choices.{at}"
        parts = _spoken(choice.text, choice.reasoning, path, call.thinking_tags)
        parts += [ShownPart(kind="refusal", cut=cut(choice.refusal))] if choice.refusal else []
        parts += [ShownPart(kind="text", cut=cut(choice.audio))] if choice.audio else []
        asked = {"tool_calls": choice.tool_calls, "function_call": choice.function_call}
        parts += [*_tool_calls(asked, path)]
        role = "answer" if len(call.choices) == 1 else f"answer {choice.index}"
        found.append(ShownMessage(role=role, parts=parts, note=choice.finish_reason or "no end"))
    return found


def _message(at: int, message: Mapping[str, Any], tags: tuple[str, ...]) -> ShownMessage:
    role, path = str(message.get("role", "?")), f"messages.{at}"
    content, parts = message.get("content"), list[ShownPart]()
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if isinstance(content, str) and role == "assistant":
        parts += _spoken(content, reasoning if isinstance(reasoning, str) else "", path, tags)
    elif isinstance(content, str):
        parts.append(ShownPart(kind="text", cut=cut(content), path=f"{path}.content"))
    elif isinstance(content, list):
        for number, each in enumerate(cast("list[Any]", content)):
            parts.append(_part(each, f"{path}.content.{number}"))
    elif content is not None:
        parts.append(ShownPart(kind="code", cut=cut(pretty(content))))
    parts += [*_tool_calls(message, path)]
    named = message.get("name") or message.get("tool_call_id")
    return ShownMessage(role=role, parts=parts, note=str(named) if named else "")


def _spoken(text: str, reasoning: str, path: str, tags: tuple[str, ...]) -> list[ShownPart]:
    """Return text and thinking apart; a long text without thinking keeps its address."""
    split = split_thinking(text, reasoning=reasoning, tags=tags)
    field = "text" if path.startswith("choices") else "content"
    found: list[ShownPart] = []
    for each in split:
        whole = each.text == text
        where = f"{path}.{field}" if whole else ""
        kind: ShownKind = "thinking" if each.kind == "thinking" else "text"
        if each.text.strip():
            found.append(ShownPart(kind=kind, cut=cut(each.text), path=where))
    return found


def _part(part: Any, path: str) -> ShownPart:
    if not isinstance(part, dict):
        return ShownPart(kind="code", cut=cut(pretty(part)))
    fields = cast("dict[str, Any]", part)
    text = fields.get("text")
    if isinstance(text, str):
        return ShownPart(kind="text", cut=cut(text), path=f"{path}.text")
    image = fields.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str):
        if len(url) < _MOST_OF_AN_IMAGE and _IMAGE.fullmatch(url):
            return ShownPart(kind="image", cut=cut(""), image=url)
        return ShownPart(kind="code", cut=cut(f"image {url[:200]}"))
    return ShownPart(kind="code", cut=cut(pretty(fields)))


def _tool_calls(message: Mapping[str, Any], path: str) -> Iterable[ShownPart]:
    calls, older = message.get("tool_calls"), message.get("function_call")
    asked: list[tuple[Any, str]] = []
    if isinstance(calls, list):
        for at, each in enumerate(cast("list[Any]", calls)):
            function = (
                cast("dict[str, Any]", each).get("function") if isinstance(each, dict) else None
            )
            asked.append((function or each, f"{path}.tool_calls.{at}.function.arguments"))
    if older:
        asked.append((older, f"{path}.function_call.arguments"))
    for function, where in asked:
        fields = cast("dict[str, Any]", function) if isinstance(function, dict) else {}
        given = fields.get("arguments", function)
        title = str(fields.get("name", "?"))
        path_ = where if isinstance(given, str) else ""
        yield ShownPart(kind="code", cut=cut(pretty(given)), title=title, path=path_)
