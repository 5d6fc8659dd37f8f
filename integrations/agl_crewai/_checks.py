"""Checks of ``agl doctor`` for common errors with CrewAI."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from agl_checks import (
    CLOSED_LOOP,
    failed_tools,
    failures_saying,
    is_from,
    records_from,
)

from agl_core.interfaces import AttemptRecord
from agl_core.tracing import UNNAMED
from agl_core.types import Finding, Span, SpanKind
from agl_crewai._listener import REWRITING_FIX
from agl_crewai._names import AGENT_ID, DEFERS_RESULTS, FRAMEWORK, RESPECTS_WINDOW, SUMMARIZER
from agl_crewai._telemetry import is_off

_TRACING: Final = "CREWAI_TRACING_ENABLED"
_TRACED: Final = frozenset({"1", "true"})
_DEFERRED: Final = "was stored as temporary artifact"
"""Part of the text that CrewAI writes instead of a tool's result."""


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check the recorded attempts; yield nothing if CrewAI recorded no spans."""
    del config
    ours = [[span for span in record.spans if _is_ours(span)] for record in records]
    if not any(ours):
        return
    spans = [span for each in ours for span in each]
    calls = [span for record in records for span in record.spans if span.call is not None]
    yield _rewriting(spans, calls)
    yield _telemetry()
    yield _shared_roles(ours)
    yield _repeated(ours)
    yield _dropped_text(calls)
    yield _failed_tools(spans)
    yield _unnamed(spans)
    yield from _closed_loop(records_from(records, FRAMEWORK))


def _is_ours(span: Span) -> bool:
    return is_from(span, FRAMEWORK)


def _rewriting(spans: Sequence[Span], calls: Sequence[Span]) -> Finding:
    """Check for prompts in which CrewAI replaces a history or a tool result by its own text."""
    able = sorted(
        {
            span.agent or ""
            for span in spans
            if span.attributes.get(RESPECTS_WINDOW) or span.attributes.get(DEFERS_RESULTS)
        }
    )
    summaries = sum(span.kind is SpanKind.LLM and span.agent == SUMMARIZER for span in spans)
    deferred = sum(_has_deferred(span) for span in calls)
    done = f"it wrote {summaries} summaries of histories and took tool results out of {deferred} prompts"
    return Finding.of(
        "crewai.rewriting",
        "error" if summaries or deferred else "warning" if able else "ok",
        f"CrewAI may rewrite the prompts of {', '.join(map(repr, able))}; {done}."
        if able or summaries or deferred
        else "CrewAI rewrites no prompts.",
        fix=f"Make every agent so: {REWRITING_FIX}. For models that it does not know, CrewAI assumes a "
        "window of 8192 tokens, and four characters for each.",
        figures={"agents": able, "summaries": summaries, "deferred": deferred},
    )


def _has_deferred(span: Span) -> bool:
    messages = span.call.messages if span.call is not None else ()
    return any(
        message.get("role") == "tool" and _DEFERRED in str(message.get("content"))
        for message in messages
    )


def _telemetry() -> Finding:
    """Check that CrewAI sends neither telemetry nor traces during rollouts."""
    off = is_off()
    traced = os.environ.get(_TRACING, "").lower() in _TRACED
    sent = [name for name, is_sent in (("telemetry", not off), ("traces", traced)) if is_sent]
    return Finding.of(
        "crewai.telemetry",
        "warning" if sent else "ok",
        f"CrewAI sends {' and '.join(sent)} during rollouts."
        if sent
        else "CrewAI's telemetry is off.",
        fix=f"Set CREWAI_DISABLE_TELEMETRY=true and {_TRACING}=false, or neither.",
        figures={"off": off, "traced": traced},
    )


def _shared_roles(attempts: Sequence[Sequence[Span]]) -> Finding:
    """Check for roles that several agents share: the role is the agent's name."""
    shared: set[str] = set()
    for spans in attempts:
        owners: dict[str, str] = {}
        for span in spans:
            name, owner = span.agent, span.attributes.get(AGENT_ID)
            if name and owner and owners.setdefault(name, owner) != owner:
                shared.add(name)
    names = sorted(shared)
    return Finding.of(
        "crewai.roles",
        "warning" if names else "ok",
        f"Several agents share the role {', '.join(map(repr, names))}: they train as one."
        if names
        else "No two agents share a role.",
        fix="Give each agent a role of its own: the role is the agent's name.",
        figures={"roles": names},
    )


def _repeated(attempts: Sequence[Sequence[Span]]) -> Finding:
    """Check for failed agent runs that CrewAI repeats silently, twice by default."""
    failed = 0
    for spans in attempts:
        runs = [span for span in spans if span.kind is SpanKind.AGENT]
        failed += sum(
            run.status == "error"
            and any(
                (later.parent_id, later.agent) == (run.parent_id, run.agent)
                for later in runs[at + 1 :]
            )
            for at, run in enumerate(runs)
        )
    return Finding.of(
        "crewai.retries",
        "warning" if failed else "ok",
        f"CrewAI ran agents again after {failed} failed runs."
        if failed
        else "CrewAI ran no agent again.",
        fix="Look at the failed runs with agl trace; Agent(..., max_retry_limit=0) shows such "
        "failures instead of hiding them.",
        figures={"failed": failed},
    )


def _dropped_text(calls: Sequence[Span]) -> Finding:
    """Check for text next to a tool call: CrewAI leaves it out of the next prompt."""
    dropped = sum(
        bool(choice.tool_calls and (choice.text.strip() or choice.reasoning.strip()))
        for span in calls
        if span.call is not None
        for choice in span.call.choices
    )
    return Finding.of(
        "crewai.text",
        "warning" if dropped else "ok",
        f"In {dropped} answers the model spoke beside a tool call; CrewAI leaves that out of the "
        "next prompt, which so begins a new branch."
        if dropped
        else "No answer had text beside a tool call.",
        fix="Ask for tool calls without text, or train with the branches: each keeps its own exact "
        "tokens.",
        figures={"answers": dropped},
    )


def _failed_tools(spans: Sequence[Span]) -> Finding:
    """Check for failed tools: CrewAI gives the exception to the model as text."""
    return failed_tools(
        spans,
        FRAMEWORK,
        check="crewai.tools",
        fix="CrewAI sends the model the error and continues. Fix the tools; "
        "Agent(..., tool_failure_policy=ToolFailurePolicy.RAISE) ends the run instead.",
    )


def _unnamed(spans: Sequence[Span]) -> Finding:
    """Check for agents without a role: the role is the agent's name."""
    runs = sum(span.kind is SpanKind.OPERATION and span.name == UNNAMED for span in spans)
    return Finding.of(
        "crewai.names",
        "warning" if runs else "ok",
        f"{runs} runs are of agents without a role, whose calls belong to the scope around or have "
        f"no agent."
        if runs
        else "Every agent that ran has a role.",
        fix="Give each agent a role: Agent(role='writer', ...).",
        figures={"runs": runs},
    )


def _closed_loop(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    """Check for closed event loops: an LLM's async client is bound to the loop of its first use."""
    return failures_saying(
        CLOSED_LOOP,
        records,
        check="crewai.loop",
        cause="the model's event loop is closed",
        fix="An LLM keeps one asynchronous client: make LLM and agents inside the agent function, and "
        "make that function async instead of calling asyncio.run in it.",
    )
