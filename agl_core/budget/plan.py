"""Which cuts of a prompt are tried; whoever drives the search counts their tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from agl_core.budget import texts
from agl_core.budget.history import Message, leaving
from agl_core.errors import ContextOverflowError
from agl_core.interfaces import Counted

Search = Generator[Sequence[Message], Counted | None, "FittedPrompt"]
"""Gives prompts, takes their tokens; None for one that the chat template refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPrompt:
    """A prompt within its budget, and what was cut for that."""

    messages: list[Message]
    """Those that were not changed are the very objects that were given."""
    kept: list[int]
    """Where each of `messages` stood in what was given."""
    tokens: int | None = None
    """None where nobody counted: outside a rollout, or the chat template refused."""
    tokens_before: int | None = None
    budget: int | None = None
    messages_cut: int = 0
    characters_cut: int = 0
    """In the messages that were kept."""

    @property
    def cut(self) -> bool:
        """Whether anything was."""
        return bool(self.messages_cut or self.characters_cut)


def untouched(messages: Sequence[Message], counted: Counted | None = None) -> FittedPrompt:
    """The prompt as it was given."""
    tokens = counted.tokens if counted is not None else None
    return FittedPrompt(
        messages=list(messages),
        kept=list(range(len(messages))),
        tokens=tokens,
        tokens_before=tokens,
    )


def fit(messages: Sequence[Message], budget_of: Callable[[Counted], int], *, agent: str) -> Search:
    """Search the smallest cut that fits: whole messages first, then the middle of long texts.

    Args:
        messages: The prompt.
        budget_of: Its budget, given the count of the whole.
        agent: Whose it is, for messages.

    Raises:
        ContextOverflowError: what has to stay is too long already.
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
        characters_cut=texts.characters(left) - texts.characters(clipped),
    )


def _clip(
    messages: list[Message], budget: int, *, agent: str, before: int
) -> Generator[Sequence[Message], Counted | None, tuple[list[Message], int]]:
    """Give every text the same greatest length, so that the longest are cut first."""
    most = texts.longest(messages)
    span = max(most - texts.SHORTEST, 0)
    found = yield from _least(1, span, lambda less: texts.clipped(messages, most - less), budget)
    if found is None:
        least = yield texts.clipped(messages, texts.SHORTEST)
        tokens = least.tokens if least is not None else before
        raise ContextOverflowError(
            f"The prompt of agent {agent!r} has {before} tokens, its budget is {budget}, and what "
            f"has to stay has {tokens}: the system prompt, the tools and the last turn. Raise the "
            f"budget, or give the agent a shorter system prompt or fewer tools"
        )
    return texts.clipped(messages, most - found[0]), found[1]


def _least(
    low: int, high: int, prompt: Callable[[int], Sequence[Message]], budget: int
) -> Generator[Sequence[Message], Counted | None, tuple[int, int] | None]:
    """The smallest cut from `low` to `high` that fits with its tokens; None where the largest does not.

    Whatever it gives has been counted, also where a template makes a larger cut the longer prompt.
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
