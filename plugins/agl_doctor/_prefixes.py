"""Findings on breaks: prompts that do not continue an earlier call token by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agl_core.adapters import Break, Continuity, continuity
from agl_core.interfaces import Backend
from agl_core.types import Finding
from agl_core.types.run import FIX, MEANING, Cause
from agl_doctor._evidence import Evidence


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
        fix="" if why == "other" else FIX[why],
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
