"""Where an agent run's next prompt does not continue an earlier one token by token."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agl_core.adapters.causes import cause
from agl_core.adapters.images import media
from agl_core.types import Choice, Ints, ModelCall
from agl_core.types.breaks import Cause

_WINDOW: Final = 12
"""Tokens shown from the first that differs."""


class AnsweredCall(Protocol):
    """An answered call with tokens, and whose it is."""

    @property
    def call(self) -> ModelCall: ...

    @property
    def agent(self) -> str: ...

    @property
    def agent_run_id(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A call that continues no earlier call of its agent run."""

    agent: str
    policy: str
    call_id: str
    cause: Cause
    shared: int
    """Tokens that it shares with the call it is closest to."""
    cost: int
    """Tokens of that call's prompt and answer that it does not share."""
    expected: tuple[int, ...]
    """The ids that would continue the earlier call, from the first that differs."""
    found: tuple[int, ...]


@dataclass(slots=True)
class Continuity:
    """How the later calls of agent runs relate to the earlier ones."""

    later: int = 0
    """Calls that were sent after another of their run was answered."""
    breaks: tuple[Break, ...] = ()

    @property
    def by_agent(self) -> dict[str, dict[str, int]]:
        """Agent to likely cause to breaks; another conversation breaks none."""
        counts: dict[str, dict[str, int]] = {}
        for one in self.breaks:
            if one.cause != "other":
                of_agent = counts.setdefault(one.agent, {})
                of_agent[one.cause] = of_agent.get(one.cause, 0) + 1
        return counts


def continuity(calls: Iterable[AnsweredCall]) -> Continuity:
    """Look at every agent run of some attempts.

    A call continues an earlier one when its prompt begins with that call's prompt and one of its
    choices. It need not continue one that was under way when it was sent, and one that repeats an
    earlier prompt breaks nothing.
    """
    runs: dict[tuple[str, str, str], list[AnsweredCall]] = defaultdict(list)
    for answered in calls:
        runs[answered.call.attempt_id, answered.agent, answered.agent_run_id].append(answered)
    found = Continuity()
    for of_run in runs.values():
        ordered = sorted(of_run, key=lambda answered: (answered.call.started_ns, answered.call.id))
        for position, answered in enumerate(ordered):
            earlier = [
                one.call
                for one in ordered[:position]
                if one.call.ended_ns <= answered.call.started_ns
            ]
            if earlier:
                found.later += 1
                broken = _break(answered, earlier)
                found.breaks += (broken,) if broken is not None else ()
    return found


def _break(after: AnsweredCall, earlier: Sequence[ModelCall]) -> Break | None:
    prompt = after.call.prompt_token_ids
    if any(_continues(after.call, before) for before in reversed(earlier)):
        return None
    options = ((before, choice) for before in reversed(earlier) for choice in before.choices)
    closest: tuple[int, ModelCall, Choice] | None = None
    for before, choice in options:
        shared = _shared(before.prompt_token_ids + choice.token_ids, prompt)
        if closest is None or shared > closest[0]:
            closest = (shared, before, choice)
    if closest is None:
        return None
    shared, before, choice = closest
    whole = before.prompt_token_ids + choice.token_ids
    return Break(
        agent=after.agent,
        policy=after.call.policy,
        call_id=after.call.id,
        cause=cause(before, choice, after.call, shared=shared),
        shared=shared,
        cost=len(whole) - shared,
        expected=tuple(whole[shared : shared + _WINDOW]),
        found=tuple(prompt[shared : shared + _WINDOW]),
    )


def _continues(after: ModelCall, before: ModelCall) -> bool:
    """Whether the prompt continues the call, or repeats it."""
    prompt, length = after.prompt_token_ids, len(before.prompt_token_ids)
    if prompt[:length] != before.prompt_token_ids:
        return False
    seen = media(before)
    if media(after)[: len(seen)] != seen:
        return False
    rest = prompt[length:]
    return not rest or any(
        rest[: len(choice.token_ids)] == choice.token_ids for choice in before.choices
    )


def _shared(one: Ints, other: Ints) -> int:
    """Tokens that both begin with; halving leaves the comparison to the arrays."""
    longest = min(len(one), len(other))
    return bisect_left(range(1, longest + 1), True, key=lambda n: one[:n] != other[:n])
