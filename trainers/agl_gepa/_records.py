"""Reflective datasets: the examples of a prompt's results that gepa shows to the editor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from agl_prompts import Seen, SeenCall, describe
from msgspec.structs import replace

from agl_core.interfaces import TunedPrompt
from agl_core.types import any_matches

ReflectiveRecord = dict[str, str]

_HERE = "[the current instructions]"


def records(
    prompt: TunedPrompt, text: str, seen: Sequence[Seen], *, max_chars: int
) -> list[ReflectiveRecord]:
    """Return one record per result in which an agent of the prompt called a model.

    A call that continues another one contains its messages, so the other one is left out. The
    current text, which gepa shows before the examples, is not repeated. Results that the
    infrastructure lost are left out.

    Args:
        prompt: The prompt that the editor rewrites.
        text: Its text in the candidate that ran.
        seen: The results of the candidate.
        max_chars: Limit of characters of one record.
    """
    found: list[ReflectiveRecord] = []
    literals = _literals(text, prompt.placeholders)
    for each in seen:
        calls = [call for call in each.calls if any_matches(prompt.agents, call.agent)]
        if each.lost or not calls:
            continue
        shown = tuple(_without(literals, call) for call in _last_of_each_conversation(calls))
        found.append({"Rollout": describe(replace(each, calls=shown), max_chars=max_chars)})
    return found


def _last_of_each_conversation(calls: Sequence[SeenCall]) -> list[SeenCall]:
    kept: list[SeenCall] = []
    for call in calls:
        kept = [earlier for earlier in kept if not _continues(call, earlier)]
        kept.append(call)
    return kept


def _continues(call: SeenCall, earlier: SeenCall) -> bool:
    size = len(earlier.messages)
    longer = len(call.messages) > size
    return longer and call.agent == earlier.agent and call.messages[:size] == earlier.messages


def _literals(text: str, placeholders: Iterable[str]) -> list[str]:
    """Return what stands before, between and after the placeholders of a text."""
    names = "|".join(re.escape(f"{{{name}}}") for name in placeholders)
    return re.split(names, text) if names else [text]


def _without(literals: Sequence[str], call: SeenCall) -> SeenCall:
    """Return the call with a short note in place of the current text."""
    if not "".join(literals).strip():
        return call
    messages = [
        {**each, "content": _replaced(each.get("content"), literals)} for each in call.messages
    ]
    return replace(call, messages=messages)


def _replaced(content: Any, literals: Sequence[str]) -> Any:
    if isinstance(content, str):
        return _shortened(content, literals)
    if isinstance(content, list):
        return [_replaced(part, literals) for part in content]
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return {**content, "text": _shortened(content["text"], literals)}
    return content


def _shortened(content: str, literals: Sequence[str]) -> str:
    begin = end = content.find(literals[0])
    for literal in literals:
        at = content.find(literal, end)
        if at < 0:
            return content
        end = at + len(literal)
    return content[:begin] + _HERE + content[end:]
