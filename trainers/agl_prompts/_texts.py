"""Texts for editors and from editors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from agl_core.text import replaced
from agl_core.types import any_matches
from agl_prompts._seen import Seen, SeenCall

HEADS: Final = ("system", "developer")
"""Roles of the messages that hold an agent's prompt."""
_FENCE: Final = re.compile(r"\s{0,3}(`{3,})\s*([^`\s]*)[^`]*$")
_THOUGHT: Final = "</think>"
_CUT: Final = "\n[...]\n"


def new_text(answer: str) -> str:
    """Return the new prompt in an editor's answer: the content of its last fenced block.

    Text up to ``</think>`` is ignored. A fence is a line of three or more backticks. Within a
    block, a fence with the name of a language begins an inner block, which belongs to the text, as
    do all fences with fewer backticks. Returns "" without a complete block, which `Study.propose`
    refuses as empty.
    """
    found = ""
    block: list[str] | None = None
    width, inner = 0, 0
    for line in answer.rpartition(_THOUGHT)[2].splitlines():
        fence = _FENCE.match(line)
        if block is None:
            if fence:
                block, width, inner = [], len(fence[1]), 0
            continue
        if fence and len(fence[1]) >= width:
            if not fence[2] and not inner:
                found, block = "\n".join(block), None
                continue
            inner += 1 if fence[2] else -1
        block.append(line)
    return found


def describe(
    seen: Seen, *, agents: Iterable[str] = (), max_chars: int = 4000, calls: int = 8
) -> str:
    """Return a result as text for editors: task, expected answer, calls, score and reasons.

    Args:
        seen: The result.
        agents: Names or globs of the agents whose calls are shown; all agents if empty.
        max_chars: Largest number of characters; the middles of the longest parts are left out.
        calls: Largest number of calls; the last ones are shown.
    """
    patterns = list(agents)
    shown = [call for call in seen.calls if not patterns or any_matches(patterns, call.agent)]
    parts = [f"Task: {_text(seen.task.input)}"]
    if seen.task.expected is not None:
        parts.append(f"Expected: {_text(seen.task.expected)}")
    parts += [_call(call) for call in shown[-calls:]]
    parts.append(f"Score: {seen.score:.4g}")
    if seen.failure is not None:
        parts.append(f"Failure: {seen.failure.value}")
    if seen.why:
        parts.append(f"Why: {seen.why}")
    return "\n\n".join(_fitted(parts, max_chars))


def strings(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def _call(call: SeenCall) -> str:
    lines = [f"Call of agent {call.agent!r}:"]
    lines += [f"[{each.get('role', '')}] {_content(each)}" for each in call.messages]
    if call.answer:
        lines.append(f"[answer] {call.answer}")
    lines += [f"[tool call] {_text(each.get('function', each))}" for each in call.tool_calls]
    if call.reward is not None:
        lines.append(f"[reward] {call.reward:.4g}")
    return "\n".join(lines)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    said = " ".join(strings(content)) if isinstance(content, list) else _text(content or "")
    calls = message.get("tool_calls")
    return f"{said} [tool calls] {_text(calls)}".strip() if calls else said


def _text(value: Any) -> str:
    return replaced(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _fitted(parts: Sequence[str], max_chars: int) -> list[str]:
    """Shorten the longest parts to one common length, such that all parts fit."""
    left = max(max_chars - 2 * (len(parts) - 1), 0)
    for count, part in zip(range(len(parts), 0, -1), sorted(parts, key=len), strict=True):
        if len(part) * count > left:
            most = left // count
            return [shortened(each, most) for each in parts]
        left -= len(part)
    return list(parts)


def shortened(text: str, most: int) -> str:
    """Return the text, without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    kept = most - len(_CUT)
    if kept <= 0:
        return text[:most]
    head = (kept + 1) // 2
    return f"{text[:head]}{_CUT}{text[len(text) - (kept - head) :]}"
