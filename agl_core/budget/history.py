"""What may leave a history, and in which order: never a tool's result without its call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Message = Mapping[str, Any]

PINNED: Final = frozenset({"system", "developer"})
"""Roles of messages that always stay as they are."""


def leaving(messages: Sequence[Message]) -> list[list[int]]:
    """Positions of the messages that may leave, those that leave together in one list.

    Whole turns before the last user message go first, the oldest at the front, so that what is left
    still begins with a user; then, one by one, the steps between that message and the last one.
    System messages, the last user message and the last step are not among them.
    """
    blocks = _blocks(messages)
    task = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    last = max((block[-1] for block in blocks), default=-1)
    free = [block for block in blocks if task not in block and last not in block]
    turns = _turns([block for block in free if block[0] < task], messages)
    return [*turns, *(block for block in free if block[0] > task)]


def _blocks(messages: Sequence[Message]) -> list[list[int]]:
    """Messages that belong together: one alone, or one that calls tools with their results."""
    blocks: list[list[int]] = []
    calling: dict[Any, list[int]] = {}
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in PINNED:
            continue
        owner = calling.get(_answers(message)) if role in ("tool", "function") else None
        if owner is not None:
            owner.append(position)
            continue
        block = [position]
        blocks.append(block)
        calling |= dict.fromkeys(_calls(message), block)
    return blocks


def _calls(message: Message) -> list[Any]:
    """What results name the message's calls by."""
    calls: list[Any] = [call.get("id") for call in message.get("tool_calls") or ()]
    return [*calls, _LEGACY] if message.get("function_call") else calls


def _answers(message: Message) -> Any:
    return _LEGACY if message.get("role") == "function" else message.get("tool_call_id")


_LEGACY: Final = object()
"""Calls of the older ``function_call`` have no ids: a result belongs to the one before it."""


def _turns(blocks: Sequence[list[int]], messages: Sequence[Message]) -> list[list[int]]:
    """Blocks joined from each user message to the next; a result may come after that one."""
    turns: list[list[int]] = []
    end = -1
    for block in blocks:
        begins = messages[block[0]].get("role") == "user" and block[0] > end
        if begins or not turns:
            turns.append([])
        turns[-1] += block
        end = max(end, block[-1])
    return turns
