"""Findings on breaks: prompts that do not continue an earlier call token by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from agl_core.interfaces import Backend
from agl_core.types import Finding
from agl_core.types.run import MEANING, Cause
from agl_doctor._continuity import Break, Continuity, continuity
from agl_doctor._evidence import Evidence

_FIX: Final[Mapping[str, str]] = {
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


async def prefixes(evidence: Evidence, backends: Mapping[str, Backend]) -> list[Finding]:
    """Return one finding on continuity, and one per agent and cause of breaks."""
    found = continuity(
        owned
        for owned in evidence.calls
        if owned.answered and owned.call.prompt_token_ids and evidence.trains(owned.known_as)
    )
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
        fix="A call that breaks off starts a new path: it is trained too, but "
        "its context is computed again. The findings prefix.break give the causes."
        if breaks
        else "",
        figures=figures,
    )


def _broken(agent: str, why: Cause, breaks: Sequence[Break], shown: str) -> Finding:
    tokens = sum(one.cost for one in breaks)
    return Finding(
        check="prefix.break",
        severity="ok" if why == "other" else "warning",
        measured=f"{agent}: {MEANING[why]}, in {len(breaks)} calls; {tokens} tokens are not shared. "
        f"{shown}",
        fix="" if why == "other" else _FIX[why],
        figures={"agent": agent, "cause": why, "calls": len(breaks), "tokens": tokens},
    )


async def _shown(one: Break, backend: Backend | None) -> str:
    """Return the position of the first break, as text if the backend can decode ids."""
    texts = (None, None)
    if backend is not None:
        texts = (await backend.detokenize(one.expected), await backend.detokenize(one.found))
    if None in texts:
        return f"Call {one.call_id!r} differs from token {one.shared} on."
    return f"Call {one.call_id!r} reads {texts[1]!r} at token {one.shared} instead of {texts[0]!r}."
