"""Causes of breaks, with their meaning and their fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

Cause = Literal[
    "tools",
    "system",
    "summary",
    "trimmed",
    "edited",
    "answer",
    "thinking",
    "text",
    "tool_calls",
    "whitespace",
    "template",
    "tokens",
    "other",
]

MEANING: Final[Mapping[str, str]] = {
    "tools": "the tools that are offered changed",
    "system": "the system prompt changed",
    "summary": "earlier messages were replaced by a new one, such as a summary",
    "trimmed": "earlier messages were left out",
    "edited": "an earlier message was edited",
    "answer": "the answer was not sent back",
    "thinking": "thinking was stripped from the history",
    "text": "text beside tool calls was left out of the history",
    "tool_calls": "tool calls were rewritten",
    "whitespace": "white space changed",
    "template": "the chat template renders the same messages differently",
    "tokens": "the same text was tokenised differently",
    "other": "another conversation began",
}

FIX: Final[Mapping[str, str]] = {
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
    "text": "Send the assistant's text back beside its tool calls, not null.",
    "tool_calls": "Send tool calls back letter for letter, ids and arguments as text; otherwise "
    "take a chat template that writes them as the model does.",
    "whitespace": "Send the assistant's text back as it came, without strip(); or take a chat "
    "template that does not trim.",
    "template": "Take a chat template whose rendering of a message does not depend on what follows.",
    "tokens": "Nothing needs to be done where it is rare: the ids are those that were sampled. It "
    "goes away with a backend that takes token ids back.",
    "other": "Nothing needs to be done; a scope per conversation separates them.",
}


def sum_breaks(found: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Sum breaks by agent and cause."""
    total: dict[str, dict[str, int]] = {}
    for agent, causes in (item for each in found for item in each.items()):
        of_agent = total.setdefault(agent, {})
        for cause, count in causes.items():
            of_agent[cause] = of_agent.get(cause, 0) + count
    return total
