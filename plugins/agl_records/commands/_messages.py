"""What a model call was asked and what it answered, as lines for a terminal."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_core import semconv
from agl_core.thinking import split_thinking
from agl_core.types import ModelCall, Span
from agl_core.types.json_text import json_text
from agl_records.commands._printing import Said, excerpt

_KIB: Final = 1024
_PNG: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is shown of what agents say."""

    messages: bool = False
    thinking: bool = False


def spoken(call: ModelCall, *, thinking: bool = False) -> Iterator[Said]:
    """Yield the messages of a call, then its choices, each after its role.

    Args:
        call: The call.
        thinking: Show thinking instead of its length.
    """
    for message in call.messages:
        yield from _message(message, call.thinking_tags, thinking=thinking)
    for choice in call.choices:
        who = f"answer {choice.index}" if len(call.choices) > 1 else "answer"
        asked = _calls({"tool_calls": choice.tool_calls, "function_call": choice.function_call})
        lines = [*_thought(who, choice.text, choice.reasoning, call.thinking_tags, show=thinking)]
        apart = {"refusal": choice.refusal, "audio": choice.audio}
        lines += [Said(f"{who}, {what}", text) for what, text in apart.items() if text]
        if asked or not lines:
            lines.append(Said(who, "", calls=asked))
        yield from lines
    if call.error:
        yield Said(f"error {call.status_code}", call.error, style="red")


def attributes_of(span: Span) -> Iterator[Said]:
    """Yield what a tool was given and what it returned, and the whole error of a span."""
    for what, key in (
        ("arguments", semconv.GEN_AI_TOOL_ARGUMENTS),
        ("result", semconv.GEN_AI_TOOL_RESULT),
    ):
        if key in span.attributes:
            yield Said(what, _text(span.attributes[key]))
    if span.error and span.call is None:
        yield Said("error", span.error, style="red")


def prompt_cut(span: Span) -> str:
    """Return what a prompt budget left out of a prompt; empty if the span records none."""
    facts = span.attributes.get(semconv.AGL_PROMPT_CUT)
    if not isinstance(facts, dict):
        return ""
    known = cast("dict[str, Any]", facts)
    return (
        f"prompt cut to a budget of {known.get('budget')} tokens: "
        f"{known.get('tokens_before')} -> {known.get('tokens_after')} tokens, "
        f"{known.get('messages_cut', 0)} messages and "
        f"{known.get('characters_cut', 0)} characters left out"
    )


def _message(message: Mapping[str, Any], tags: Sequence[str], *, thinking: bool) -> Iterator[Said]:
    role, asked = str(message.get("role", "?")), _calls(message)
    name = message.get("name") or message.get("tool_call_id")
    who = f"{role} {name}" if name and role != "user" else role
    text, reasoning = (
        _content(message),
        message.get("reasoning_content") or message.get("reasoning"),
    )
    if role != "assistant":
        yield Said(who, text, calls=asked)
        return
    thought = reasoning if isinstance(reasoning, str) else ""
    lines = [*_thought(who, text, thought, tags, show=thinking)]
    if asked or not lines:
        lines.append(Said(who, "", calls=asked))
    yield from lines


def _thought(
    who: str, text: str, reasoning: str, tags: Sequence[str], *, show: bool
) -> Iterator[Said]:
    """Yield an answer's parts, thinking as its length unless it is shown."""
    for part in split_thinking(text, reasoning=reasoning, tags=tags):
        if part.kind != "thinking":
            yield Said(who, part.text)
        elif show:
            yield Said(f"{who}, thinking", part.text, style="dim")
        elif part.text.strip():
            folded = f"{len(part.text):,} characters (--thinking shows them)"
            yield Said(f"{who}, thinking", folded, style="dim")


def _content(message: Mapping[str, Any]) -> str:
    """Return a message's text, or why it has none; other parts by their type and size."""
    content = message.get("content") or message.get("refusal")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json_text(content)
    return " ".join(map(_part, cast("list[Any]", content)))


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    fields = cast("dict[str, Any]", part)
    text = fields.get("text", fields.get("refusal"))
    return text if isinstance(text, str) else f"[{_placeholder(fields)}]"


def _placeholder(fields: Mapping[str, Any]) -> str:
    """Return the type of what is no text, with its size if the record has it."""
    kind = str(fields.get("type", "?"))
    inner = fields.get("image_url", fields.get("input_audio", fields.get("source")))
    given = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {"url": inner}
    media = str(given.get("media_type") or given.get("format") or "")
    data = given.get("data") or given.get("url")
    if not isinstance(data, str):
        return kind
    head, comma, encoded = data.partition(",")
    if comma and head.startswith("data:"):
        media, data = head.removeprefix("data:").partition(";")[0], encoded
    elif not given.get("data"):
        return f"{kind} {excerpt(data)}"
    size = f"{len(data) * 3 / 4 / _KIB:,.1f} KiB"
    return " ".join(filter(None, (kind, media, _pixels(data), size)))


def _pixels(data: str) -> str:
    """Return width and height of a PNG; empty for other formats."""
    try:
        head = base64.b64decode(data[:32], validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not head.startswith(_PNG):
        return ""
    return f"{int.from_bytes(head[16:20])}x{int.from_bytes(head[20:24])}"


def _calls(message: Mapping[str, Any]) -> list[str]:
    """Return a message's tool calls that have the wire's form, or the older form."""
    given, older = message.get("tool_calls"), message.get("function_call")
    calls = cast("list[Any]", given) if isinstance(given, list) else []
    found: list[dict[str, Any]] = [each for each in calls if isinstance(each, dict)]
    found += [{"function": older}] if isinstance(older, dict) else []
    return [*map(_asked_tool, found)]


def _asked_tool(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    if not isinstance(function, dict):
        return json_text(tool)
    fields = cast("dict[str, Any]", function)
    return f"{fields.get('name', '?')}({_text(fields.get('arguments', ''))})"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
