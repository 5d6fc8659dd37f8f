"""What spans add up to: one span per call, totals of agents, rewards by channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from agl_core import semconv
from agl_core.adapters import aliases_of
from agl_core.types import ModelCall, Span, SpanKind


@dataclass(slots=True)
class AgentTotals:
    """Calls, tokens and rewards of one agent in an attempt."""

    alias: str = ""
    """Its `agl.alias`; empty if it has none."""
    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    reward: float | None = None
    """Sum of the rewards for the agent, its runs and its calls; None if there are none."""


def merge_calls(spans: Iterable[Span]) -> list[Span]:
    """Return one span per model call: structure from tracing, tokens from the gateway.

    Calls that only the gateway saw, including superseded tries, become children of the attempt and
    are last, in order of time.
    """
    ordered = sorted(spans, key=lambda span: span.order)
    seen = {
        span.call_id: span.call
        for span in ordered
        if span.call is not None and not span.call.superseded
    }
    traced = [span for span in ordered if span.call is None]
    known = {span.call_id for span in traced if span.kind is SpanKind.LLM}
    alone = [
        msgspec.structs.replace(span, parent_id=None)
        for span in ordered
        if span.call is not None and (span.call.superseded or span.call_id not in known)
    ]
    merged = [
        msgspec.structs.replace(span, call=seen.get(span.call_id))
        if span.kind is SpanKind.LLM and span.call_id is not None
        else span
        for span in traced
    ]
    return merged + sorted(alone, key=lambda span: (span.start_ns, span.id))


def agent_totals(spans: Sequence[Span]) -> dict[str, AgentTotals]:
    """Return calls, tokens and rewards of each agent in merged spans, in order of appearance."""
    totals: dict[str, AgentTotals] = {}
    aliases = aliases_of(spans)
    owner_of_call: dict[str, str] = {}
    owners_of_run: dict[str, set[str]] = {}
    for span in spans:
        if not span.agent:
            continue
        entry = totals.setdefault(span.agent, AgentTotals())
        entry.alias = aliases.get(span.agent, "")
        if span.agent_run_id:
            owners_of_run.setdefault(span.agent_run_id, set()).add(span.agent)
        if span.kind is SpanKind.LLM and not (span.call and span.call.superseded):
            entry.calls += 1
            owner_of_call[span.call_id or span.id] = span.agent
            prompt, sampled = tokens_of(span.call)
            entry.prompt_tokens += prompt
            entry.sampled_tokens += sampled
    for span in spans:
        if span.reward is not None:
            target = span.reward.target
            owner = target.agent or owner_of_call.get(target.call or "")
            owners = owners_of_run.get(target.agent_run or "", set())
            owner = owner or (min(owners) if len(owners) == 1 else None)
            if owner is not None:
                entry = totals.setdefault(owner, AgentTotals())
                entry.reward = (entry.reward or 0.0) + span.reward.value
    return totals


def rewards_of(spans: Iterable[Span]) -> dict[str, float]:
    """Return the unweighted sum of rewards by channel, over all targets."""
    channels: dict[str, float] = {}
    for span in spans:
        if span.reward is not None:
            reward = span.reward
            channels[reward.channel] = channels.get(reward.channel, 0.0) + reward.value
    return dict(sorted(channels.items()))


def usage_of(span: Span) -> tuple[int, int]:
    """Return a call's numbers of prompt and sampled tokens: recorded ones, or those of its answer.

    Tokens of agents that are not trained are not recorded; most answers state their numbers.
    """
    recorded = tokens_of(span.call)
    if any(recorded):
        return recorded
    names = (semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
    prompt, sampled = (span.attributes.get(name) for name in names)
    return (
        prompt if isinstance(prompt, int) else 0,
        sampled if isinstance(sampled, int) else 0,
    )


def tokens_of(call: ModelCall | None) -> tuple[int, int]:
    """Return the numbers of prompt and sampled tokens."""
    if call is None:
        return 0, 0
    return len(call.prompt_token_ids), sum(len(choice.token_ids) for choice in call.choices)
