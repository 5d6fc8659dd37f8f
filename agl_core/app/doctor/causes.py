"""Why a conversation's next prompt does not begin with the prompt and the answer before it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, cast

from agl_core.types import Choice, ModelCall

Message = Mapping[str, Any]

Cause = Literal[
    "tools",
    "system",
    "summary",
    "trimmed",
    "edited",
    "answer",
    "thinking",
    "tool_calls",
    "whitespace",
    "template",
    "tokens",
    "other",
]

TOLD: Final[Mapping[Cause, str]] = {
    "tools": "the tools that are offered changed",
    "system": "the system prompt changed",
    "summary": "earlier messages were replaced by a new one, such as a summary",
    "trimmed": "earlier messages were left out",
    "edited": "an earlier message was edited",
    "answer": "the answer was not sent back",
    "thinking": "thinking was stripped from the history",
    "tool_calls": "tool calls were written anew",
    "whitespace": "white space changed",
    "template": "the chat template renders the same messages differently",
    "tokens": "the same text was tokenised differently",
    "other": "another conversation began",
}

FIX: Final[Mapping[Cause, str]] = {
    "tools": "Offer the same tools, in the same order and wording, in every call of an agent run.",
    "system": "Keep what changes, such as the time, out of the system prompt: put it into the "
    "newest message.",
    "summary": "Where that is wanted it may stay. Otherwise raise the limit from which on the "
    "framework summarises, or switch it off for training.",
    "trimmed": "Raise the limit from which on history is trimmed, or switch trimming off for "
    "training.",
    "edited": "Append to the history instead of changing it.",
    "answer": "Send the assistant's message back as it came, with its tool calls.",
    "thinking": "Send reasoning back, take a chat template that keeps it, or switch thinking off.",
    "tool_calls": "Send tool calls back letter for letter, ids and arguments as text; otherwise "
    "take a chat template that writes them as the model does.",
    "whitespace": "Send the assistant's text back as it came, without strip(); or take a chat "
    "template that does not trim.",
    "template": "Take a chat template whose rendering of a message does not depend on what follows.",
    "tokens": "Nothing needs to be done where it is rare: the ids are those that were sampled. It "
    "goes away with a backend that takes token ids back.",
    "other": "Nothing needs to be done; a scope per conversation would tell them apart.",
}

_THOUGHT: Final = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_SYSTEM: Final = frozenset({"system", "developer"})


def cause(before: ModelCall, choice: Choice, after: ModelCall, *, shared: int) -> Cause:
    """The likely cause of a break, by what differs first in messages, then in tokens.

    Args:
        before: The call that `after` shares most of its prompt with.
        choice: Its choice with which it does so.
        after: The call whose prompt breaks off.
        shared: Tokens that both begin with.
    """
    if before.tools != after.tools:
        return "tools"
    old, new = before.messages, after.messages
    one, other = _instructions(old), _instructions(new)
    if one != other:
        return "whitespace" if one.split() == other.split() else "system"
    kept = _kept(old, new)
    if kept < len(old):
        return _in_history(old, new, kept, answer=choice.text)
    answer = new[len(old)] if len(new) > len(old) else None
    if answer is None or answer.get("role") != "assistant":
        return "answer"
    return _in_answer(choice, answer) or _in_tokens(before, choice, shared=shared)


def _instructions(messages: Sequence[Message]) -> str:
    return "\n".join(text_of(m) for m in messages if m.get("role") in _SYSTEM)


def _kept(old: Sequence[Message], new: Sequence[Message]) -> int:
    """Messages that both begin with."""
    for position, (one, other) in enumerate(zip(old, new, strict=False)):
        if _key(one) != _key(other):
            return position
    return min(len(old), len(new))


def _in_history(old: Sequence[Message], new: Sequence[Message], kept: int, *, answer: str) -> Cause:
    """An earlier message is another one now, or not there."""
    if kept >= len(new):
        return "trimmed"
    changed = _change(old[kept], new[kept])
    if changed is not None:
        return changed
    seen = [_key(message) for message in old]
    survivors = [m for m in new if _key(m) in seen and m.get("role") not in _SYSTEM]
    if _key(new[kept]) in seen:
        return "trimmed"
    answered = any(m.get("role") == "assistant" and text_of(m) == answer for m in new)
    spoken = [m for m in old if m.get("role") not in _SYSTEM]
    if not survivors and not answered:
        return "summary" if len(spoken) > 1 and len(new) <= len(old) else "other"
    return "edited" if len(new) > len(old) else "summary"


def _change(old: Message, new: Message) -> Cause | None:
    """What happened to one message; None when it is another one altogether."""
    if old.get("role") != new.get("role"):
        return None
    one, other = text_of(old), text_of(new)
    if one == other:
        return _changed_calls(_calls(old), _calls(new))
    return _changed_text(one, other)


def _changed_text(one: str, other: str) -> Cause | None:
    if " ".join(one.split()) == " ".join(other.split()):
        return "whitespace"
    if _THOUGHT.sub("", one).split() == _THOUGHT.sub("", other).split():
        return "thinking"
    return None


def _changed_calls(one: Sequence[Any], other: Sequence[Any]) -> Cause | None:
    if one == other:
        return None
    return "tool_calls" if _meant(one) == _meant(other) else "edited"


def _in_answer(choice: Choice, sent: Message) -> Cause | None:
    """How the answer differs from the message in which it was sent back."""
    back = text_of(sent)
    thought = sent.get("reasoning_content") or sent.get("reasoning")
    if choice.reasoning and not thought and choice.reasoning.strip() not in back:
        return "thinking"
    if choice.text != back:
        return _changed_text(choice.text, back) or "edited"
    return _changed_calls(choice.tool_calls, _calls(sent))


def _in_tokens(before: ModelCall, choice: Choice, *, shared: int) -> Cause:
    """Where every message was sent back as it came: how the chat template or tokeniser differ."""
    if shared < len(before.prompt_token_ids):
        return _rendered(before.messages) or "template"
    spoken = {
        "content": choice.text,
        "reasoning": choice.reasoning,
        "tool_calls": choice.tool_calls,
    }
    return _rendered([spoken]) or "tokens"


def _rendered(messages: Sequence[Message]) -> Cause | None:
    """What chat templates are known to change in messages that were sent back as they came."""
    spoken = [m for m in messages if m.get("role", "assistant") == "assistant"]
    if any(m.get("reasoning") or _THOUGHT.search(text_of(m)) for m in spoken):
        return "thinking"
    if any(_calls(m) for m in spoken):
        return "tool_calls"
    if any(text_of(m) != text_of(m).strip() for m in spoken):
        return "whitespace"
    return None


def text_of(message: Message) -> str:
    """A message's text, the texts of its parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [cast("Message", part) for part in parts if isinstance(part, Mapping)]
    return "".join(str(part.get("text", "")) for part in texts)


def _calls(message: Message) -> list[Any]:
    return list(message.get("tool_calls") or [])


def _key(message: Message) -> tuple[Any, ...]:
    calls = json.dumps(_calls(message), sort_keys=True)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return (message.get("role"), text_of(message), calls, message.get("tool_call_id"), reasoning)


def _meant(calls: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Names and arguments of tool calls, however they are written."""
    found: list[tuple[Any, Any]] = []
    for call in calls:
        function: Mapping[str, Any] = call.get("function") or {}
        arguments = function.get("arguments")
        with suppress(ValueError):
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        found.append((function.get("name"), arguments))
    return found
