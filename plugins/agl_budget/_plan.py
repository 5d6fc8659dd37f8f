"""Search for the smallest cut of a prompt; the caller counts the tokens of each candidate."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_core.errors import ContextOverflowError
from agl_core.interfaces import Counted

Message = Mapping[str, Any]
"""A message as a client sends it."""

PINNED: Final = frozenset({"system", "developer"})
"""Roles of messages that are never changed."""


def leaving(messages: Sequence[Message]) -> list[list[int]]:
    """Return the positions of messages that may be removed, in order; each list is one step.

    First come whole turns before the last user message, the oldest first, so that the rest begins
    with a user message; then, one by one, the messages between the last user message and the last
    message, a tool call together with its results. System messages, the last user message and the
    last message with its tool call are never removed.
    """
    blocks = _blocks(messages)
    task = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    last = max((block[-1] for block in blocks), default=-1)
    free = [block for block in blocks if task not in block and last not in block]
    turns = _turns([block for block in free if block[0] < task], messages)
    return [*turns, *(block for block in free if block[0] > task)]


def _blocks(messages: Sequence[Message]) -> list[list[int]]:
    """Return positions of messages that belong together: one, or a tool call with its results."""
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
    """Return the ids by which results refer to the message's calls."""
    calls: list[Any] = [call.get("id") for call in message.get("tool_calls") or ()]
    return [*calls, _LEGACY] if message.get("function_call") else calls


def _answers(message: Message) -> Any:
    return _LEGACY if message.get("role") == "function" else message.get("tool_call_id")


_LEGACY: Final = object()
"""Calls of the older ``function_call`` have no ids: a result belongs to the last call before it."""


def _turns(blocks: Sequence[list[int]], messages: Sequence[Message]) -> list[list[int]]:
    """Join blocks from each user message to the next; a tool's result may follow the next one."""
    turns: list[list[int]] = []
    end = -1
    for block in blocks:
        begins = messages[block[0]].get("role") == "user" and block[0] > end
        if begins or not turns:
            turns.append([])
        turns[-1] += block
        end = max(end, block[-1])
    return turns


PromptSearch = Generator[Sequence[Message], Counted | None, "FittedPrompt"]
"""Yields prompts and receives their counts; None for a prompt that the chat template refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPrompt:
    """A prompt within its budget, and the size of the cut."""

    messages: list[Message]
    """Unchanged messages are the original objects."""
    kept: list[int]
    """Position of each of `messages` in the original prompt."""
    tokens: int | None = None
    """None if tokens were not counted: outside a rollout, or if the chat template refused."""
    tokens_before: int | None = None
    budget: int | None = None
    messages_cut: int = 0
    characters_cut: int = 0
    """In the remaining messages."""

    @property
    def cut(self) -> bool:
        """Whether the prompt was cut."""
        return bool(self.messages_cut or self.characters_cut)


def untouched(messages: Sequence[Message], counted: Counted | None = None) -> FittedPrompt:
    """Return the prompt without changes."""
    tokens = counted.tokens if counted is not None else None
    return FittedPrompt(
        messages=list(messages),
        kept=list(range(len(messages))),
        tokens=tokens,
        tokens_before=tokens,
    )


def fit(
    messages: Sequence[Message], budget_of: Callable[[Counted], int], *, agent: str
) -> PromptSearch:
    """Search the smallest cut that fits: whole messages first, then the middle of long texts.

    Args:
        messages: The prompt.
        budget_of: Returns the budget, given the count of the whole prompt.
        agent: The prompt's agent, for errors.

    Raises:
        ContextOverflowError: the parts that are never removed are too long.
    """
    counted = yield messages
    if counted is None:
        return untouched(messages)
    budget = budget_of(counted)
    if counted.tokens <= budget:
        return untouched(messages, counted)
    steps = leaving(messages)

    def without(count: int) -> tuple[list[int], list[Message]]:
        gone = {position for step in steps[:count] for position in step}
        kept = [position for position in range(len(messages)) if position not in gone]
        return kept, [messages[position] for position in kept]

    found = yield from _least(1, len(steps), lambda count: without(count)[1], budget)
    kept, left = without(len(steps) if found is None else found[0])
    tokens = None if found is None else found[1]
    clipped = left
    if tokens is None:
        clipped, tokens = yield from _clip(left, budget, agent=agent, before=counted.tokens)
    return FittedPrompt(
        messages=list(clipped),
        kept=kept,
        tokens=tokens,
        tokens_before=counted.tokens,
        budget=budget,
        messages_cut=len(messages) - len(kept),
        characters_cut=characters(left) - characters(clipped),
    )


def _clip(
    messages: list[Message], budget: int, *, agent: str, before: int
) -> Generator[Sequence[Message], Counted | None, tuple[list[Message], int]]:
    """Limit all texts to the same length, so that the longest are cut first."""
    most = longest(messages)
    span = max(most - SHORTEST, 0)
    found = yield from _least(1, span, lambda less: clipped(messages, most - less), budget)
    if found is None:
        least = yield clipped(messages, SHORTEST)
        tokens = least.tokens if least is not None else before
        raise ContextOverflowError(
            f"The prompt of agent {agent!r} has {before} tokens, its budget is {budget}, and what "
            f"has to stay has {tokens}: the system prompt, the tools and the last turn. Raise the "
            f"budget, or give the agent a shorter system prompt or fewer tools"
        )
    return clipped(messages, most - found[0]), found[1]


def _least(
    low: int, high: int, prompt: Callable[[int], Sequence[Message]], budget: int
) -> Generator[Sequence[Message], Counted | None, tuple[int, int] | None]:
    """Return the smallest cut from `low` to `high` that fits, and its tokens; None if `high` fails.

    The result itself has been counted, as a template may render a larger cut as a longer prompt.
    """
    found: tuple[int, int] | None = None
    at = high
    while low <= at <= high:
        counted = yield prompt(at)
        if counted is not None and counted.tokens <= budget:
            found, high = (at, counted.tokens), at - 1
        elif found is None:
            return None
        else:
            low = at + 1
        at = (low + high) // 2
    return found


SHORTEST: Final = 80
"""Texts of up to this many characters are not cut: the note must fit, with a word at each end."""
_FIELDS: Final = ("content", "reasoning_content", "reasoning")


def longest(messages: Sequence[Message]) -> int:
    """Return the length of the longest text that may be cut, in characters."""
    lengths: list[int] = [0]

    def look(text: str) -> str:
        lengths.append(len(text))
        return text

    for message in messages:
        _changed(message, look)
    return max(lengths)


def clipped(messages: Sequence[Message], most: int) -> list[Message]:
    """Cut the messages' texts to `most` characters; other messages stay the same objects."""
    return [_changed(message, lambda text: clip(text, most)) for message in messages]


def clip(text: str, most: int) -> str:
    """Return beginning and end of a text, with a note between them on the missing characters.

    Args:
        text: A text.
        most: Most characters of the result, `SHORTEST` or more.
    """
    if len(text) <= most:
        return text
    note = f"\n[... {len(text) - most} or more characters left out ...]\n"
    kept = most - len(note)
    return text[: kept - kept // 2] + note + text[len(text) - kept // 2 :]


def characters(messages: Sequence[Message]) -> int:
    """Return the total length of all texts that may be cut."""
    total = 0

    def look(text: str) -> str:
        nonlocal total
        total += len(text)
        return text

    for message in messages:
        _changed(message, look)
    return total


def _changed(message: Message, change: Callable[[str], str]) -> Message:
    """Change the texts of a message; return the same object if none changes."""
    if message.get("role") in PINNED:
        return message
    changes = {
        name: value
        for name in _FIELDS
        if (value := _content(message.get(name), change)) is not message.get(name)
    }
    return {**message, **changes} if changes else message


def _content(content: Any, change: Callable[[str], str]) -> Any:
    if isinstance(content, str):
        return _same(content, change(content))
    if not isinstance(content, list):
        return content
    parts = cast("list[Any]", content)
    changed = [_part(part, change) for part in parts]
    return changed if any(a is not b for a, b in zip(parts, changed, strict=True)) else parts


def _part(part: Any, change: Callable[[str], str]) -> Any:
    if isinstance(part, str):
        return _same(part, change(part))
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, Any]", part)
    text = fields.get("text")
    if not isinstance(text, str):
        return fields
    changed = change(text)
    return fields if changed == text else {**fields, "text": changed}


def _same(before: str, after: str) -> str:
    return before if before == after else after
