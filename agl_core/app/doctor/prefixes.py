"""Where an agent run's next prompt does not continue an earlier one token by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agl_core.app.doctor.calls import OwnedCall
from agl_core.app.doctor.causes import FIX, TOLD, Cause, cause
from agl_core.app.doctor.trial import Trial
from agl_core.interfaces import Backend, LegibleBackend
from agl_core.types import Choice, Finding

_WINDOW: Final = 12
"""Tokens shown from the first that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A call that goes on from no earlier call of its agent run."""

    agent: str
    policy: str
    call_id: str
    cause: Cause
    shared: int
    """Tokens that it shares with the call it is closest to."""
    cost: int
    """Tokens of that call's prompt and answer that it does not share."""
    expected: tuple[int, ...]
    """Ids from the first that differs on, as they would go on."""
    found: tuple[int, ...]


@dataclass(slots=True)
class Continuity:
    """How the later calls of agent runs relate to the earlier ones."""

    later: int = 0
    """Calls that came after another of their run had been answered."""
    breaks: tuple[Break, ...] = ()


def continuity(trial: Trial) -> Continuity:
    """Look at every agent run with tokens of the agents to train.

    A call continues an earlier one when its prompt begins with that call's prompt and one of its
    choices. It need not continue one that was under way when it was sent, and one that repeats an
    earlier prompt breaks nothing.
    """
    runs: dict[tuple[str, str, str], list[OwnedCall]] = defaultdict(list)
    for owned in trial.calls:
        if owned.answered and owned.call.prompt_token_ids and trial.trains(owned.agent):
            runs[owned.call.attempt_id, owned.agent, owned.agent_run_id].append(owned)
    found = Continuity()
    for calls in runs.values():
        for position, owned in enumerate(calls):
            earlier = [
                one for one in calls[:position] if one.call.ended_ns <= owned.call.started_ns
            ]
            if earlier:
                found.later += 1
                broken = _break(owned, earlier)
                found.breaks += (broken,) if broken is not None else ()
    return found


def _break(after: OwnedCall, earlier: Sequence[OwnedCall]) -> Break | None:
    prompt = after.call.prompt_token_ids
    closest: tuple[int, OwnedCall, Choice] | None = None
    for before in reversed(earlier):
        if before.call.prompt_token_ids == prompt:
            return None
        for choice in before.call.choices:
            whole = [*before.call.prompt_token_ids, *choice.token_ids]
            shared = _shared(whole, prompt)
            if shared == len(whole):
                return None
            if closest is None or shared > closest[0]:
                closest = (shared, before, choice)
    if closest is None:
        return None
    shared, before, choice = closest
    whole = [*before.call.prompt_token_ids, *choice.token_ids]
    return Break(
        agent=after.agent,
        policy=after.call.policy,
        call_id=after.call.id,
        cause=cause(before.call, choice, after.call, shared=shared),
        shared=shared,
        cost=len(whole) - shared,
        expected=tuple(whole[shared : shared + _WINDOW]),
        found=tuple(prompt[shared : shared + _WINDOW]),
    )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return min(len(one), len(other))


async def prefixes(trial: Trial, backends: Mapping[str, Backend]) -> list[Finding]:
    """One finding on continuity, and one per agent and cause of breaks."""
    found = continuity(trial)
    true_breaks = [one for one in found.breaks if one.cause != "other"]
    findings = [_whole(found, true_breaks)]
    by_cause: dict[tuple[str, Cause], list[Break]] = defaultdict(list)
    for one in found.breaks:
        by_cause[one.agent, one.cause].append(one)
    for (agent, why), breaks in sorted(by_cause.items()):
        shown = await _shown(breaks[0], backends.get(breaks[0].policy))
        findings.append(_broken(agent, why, breaks, shown))
    return findings


def _whole(found: Continuity, breaks: Sequence[Break]) -> Finding:
    figures = {
        "later_calls": found.later,
        "breaks": len(breaks),
        "tokens": sum(one.cost for one in breaks),
    }
    if not found.later:
        return Finding(
            check="prefix.continue",
            severity="ok",
            measured="No agent run to train has a second call with tokens.",
            figures=figures,
        )
    whole = found.later - len(found.breaks)
    return Finding(
        check="prefix.continue",
        severity="warning" if breaks else "ok",
        measured=f"{whole} of {found.later} later calls of agent runs continue an earlier one token "
        f"by token"
        + (f"; breaks cost {figures['tokens']} tokens of shared context." if breaks else "."),
        fix="Calls that break off start a path of their own: they are trained all the same, but "
        "their context is computed again. The findings prefix.break say why."
        if breaks
        else "",
        figures=figures,
    )


def _broken(agent: str, why: Cause, breaks: Sequence[Break], shown: str) -> Finding:
    tokens = sum(one.cost for one in breaks)
    return Finding(
        check="prefix.break",
        severity="ok" if why == "other" else "warning",
        measured=f"{agent}: {TOLD[why]}, in {len(breaks)} calls; {tokens} tokens are not shared. "
        f"{shown}",
        fix="" if why == "other" else FIX[why],
        figures={"agent": agent, "cause": why, "calls": len(breaks), "tokens": tokens},
    )


async def _shown(one: Break, backend: Backend | None) -> str:
    """Where the first break is, as text where the backend can tell it."""
    texts = None
    if isinstance(backend, LegibleBackend):
        texts = (await backend.text_of(one.expected), await backend.text_of(one.found))
    if texts is None or None in texts:
        return f"Call {one.call_id!r} differs from token {one.shared} on."
    return f"Call {one.call_id!r} reads {texts[1]!r} at token {one.shared} instead of {texts[0]!r}."
