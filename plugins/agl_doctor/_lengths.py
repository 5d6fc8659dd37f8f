"""Findings on lengths: calls that do not fit the context, and answers that are cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from agl_core.interfaces import Backend
from agl_core.training import failure_of
from agl_core.types import FailureKind, Finding, says_overflow
from agl_doctor._calls import OwnedCall
from agl_doctor._evidence import Evidence

_TIGHT: Final = 0.9
"""Share of the context above which the longest call is a warning."""


async def lengths(evidence: Evidence, backends: Mapping[str, Backend]) -> list[Finding]:
    """Return all findings on lengths."""
    found: list[Finding] = []
    by_policy: dict[str, list[OwnedCall]] = defaultdict(list)
    for owned in evidence.calls:
        if owned.call.policy:  # a call without a policy has failed; other findings report it
            by_policy[owned.call.policy].append(owned)
    for policy, calls in sorted(by_policy.items()):
        backend = backends.get(policy)
        limit = None if backend is None else await backend.context_length()
        found.append(context(policy, calls, limit))
    return [*found, *_overflows(evidence), *_cut(evidence)]


def context(policy: str, calls: Sequence[OwnedCall], limit: int | None) -> Finding:
    """Compare the longest prompt plus answer with the context of the policy."""
    check = "lengths.context"
    known = [o for o in calls if o.prompt_tokens is not None]
    longest = max(((o.prompt_tokens or 0) + (o.answer_tokens or 0) for o in known), default=0)
    unknown = len(calls) - len(known)
    says = f"Policy {policy!r}: the longest prompt with its answer has {longest} tokens"
    if unknown:
        says += f", {unknown} of {len(calls)} calls have no known length"
    figures = {"policy": policy, "longest": longest, "context": limit, "unknown": unknown}
    if limit is None or not known:
        return Finding(
            check=check,
            severity="not checked",
            measured=f"{says}; its context is not known."
            if limit is None
            else f"Policy {policy!r}: no call has a known length.",
            fix="Compare it with the model's context yourself."
            if limit is None
            else "Request usage in streamed calls: stream_options = {'include_usage': true}.",
            figures=figures,
        )
    cramped = sum((o.prompt_tokens or 0) + (o.call.sampling.max_tokens or 0) > limit for o in known)
    tight = longest >= _TIGHT * limit
    says += f", the context holds {limit}"
    if cramped:
        says += f"; {cramped} of {len(known)} prompts leave less room than the call's max_tokens"
    return Finding(
        check=check,
        severity="warning" if tight or cramped else "ok",
        measured=f"{says}.",
        fix="Shorten the history or raise the engine's context (max_model_len): a prompt that does "
        "not fit fails its attempt as context_overflow."
        if tight or cramped
        else "",
        figures={**figures, "cramped": cramped},
    )


def _overflows(evidence: Evidence) -> list[Finding]:
    """Report overflows from failures and from calls: some clients do not report the cause."""
    failures = [(r.attempt.id, failure_of(r)) for r in evidence.records]
    reasons = {
        attempt: failure.message
        for attempt, failure in failures
        if failure is not None and failure.kind is FailureKind.CONTEXT_OVERFLOW
    }
    for owned in evidence.calls:
        if says_overflow(owned.call.error):
            reasons.setdefault(owned.call.attempt_id, owned.call.error)
    if not reasons:
        return []
    return [
        Finding(
            check="lengths.overflow",
            severity="error",
            measured=f"{len(reasons)} of {len(evidence.records)} attempts sent a prompt that does "
            f"not fit. The first: {next(iter(reasons.values()))}",
            fix="Shorten the history or the tools' results, as agl_budget.PromptBudget does, or raise "
            "the engine's context (max_model_len).",
            figures={"attempts": len(reasons)},
        )
    ]


def _cut(evidence: Evidence) -> list[Finding]:
    """Return one finding on cut answers per agent to train."""
    answers: dict[str, list[OwnedCall]] = defaultdict(list)
    for owned in evidence.calls:
        if owned.answered and evidence.trains(owned.known_as):
            answers[owned.known_as].append(owned)
    return [_cut_of(agent, calls) for agent, calls in sorted(answers.items())]


def _cut_of(agent: str, calls: Sequence[OwnedCall]) -> Finding:
    choices = [(owned, choice) for owned in calls for choice in owned.call.choices]
    cut = [owned for owned, choice in choices if choice.finish_reason == "length"]
    share = len(cut) / max(len(choices), 1)
    limits = sorted({owned.call.sampling.max_tokens or 0 for owned in cut})
    stated = ", ".join(str(limit) if limit else "the engine's default" for limit in limits)
    says = f"{agent}: {len(cut)} of {len(choices)} answers are cut ({share:.0%})"
    return Finding(
        check="lengths.cut",
        severity="warning" if cut else "ok",
        measured=f"{says}, at max_tokens {stated}." if cut else f"{says}.",
        fix="A cut answer is trained without its end. Raise the agent's max_tokens and "
        "rollout.max_tokens, or ask for shorter answers."
        if cut
        else "",
        figures={"agent": agent, "answers": len(choices), "cut": len(cut), "share": share},
    )
