"""Checks of ``agl doctor`` for common errors with AgentScope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from agl_checks import (
    CLOSED_LOOP,
    failed_tools,
    failures_saying,
    is_from,
    records_from,
)

from agl_agentscope._spans import FRAMEWORK
from agl_agentscope._usage import CLOCK, FOLDS, INTERRUPTED, PARKED, PLAN, SHARED
from agl_core.interfaces import AttemptRecord
from agl_core.types import Finding, Span, SpanKind

_NO_CLOCK: Final = "Give agents injection_config=InjectionConfig(inject_runtime_state=False)."
_PLANNED: Final = (
    "Give PlanNotebook(plan_to_hint=...) a function that leaves the times of a plan out."
)


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check the recorded attempts; yield nothing if AgentScope recorded no spans."""
    del config
    ours = records_from(records, FRAMEWORK)
    if not ours:
        return
    spans = [span for record in ours for span in record.spans]
    replies = [span for span in spans if _is_ours(span) and span.kind is SpanKind.AGENT]
    yield _clock(replies)
    yield _shared(replies)
    yield _failed_tools(spans)
    yield from _parked(replies)
    yield from _folded(replies)
    yield from _interrupted(replies)
    yield from _closed_loop(ours)


def _is_ours(span: Span) -> bool:
    return is_from(span, FRAMEWORK)


def _clock(replies: Sequence[Span]) -> Finding:
    """Check for times in prompts: version 2 adds the time of day, version 1 the times of plans."""
    found = [span for span in replies if span.attributes.get(CLOCK)]
    names = sorted({span.agent or "" for span in found})
    planned = [span.attributes[CLOCK] == PLAN for span in found]
    fixes = [_NO_CLOCK] * (not all(planned)) + [_PLANNED] * any(planned)
    return Finding.of(
        "agentscope.clock",
        "warning" if found else "ok",
        f"{len(found)} of {len(replies)} replies had the time of day in their prompt "
        f"({', '.join(names)}): equal tasks have unequal prompts, which no rollout repeats."
        if found
        else f"None of {len(replies)} replies had the time of day in its prompt.",
        fix=" ".join(fixes),
        figures={"replies": len(found), "agents": names},
    )


def _shared(replies: Sequence[Span]) -> Finding:
    """Check for shared agent objects: all rollouts that use one also share its memory."""
    shared = [span for span in replies if span.attributes.get(SHARED)]
    names = sorted({span.agent or "" for span in shared})
    return Finding.of(
        "agentscope.shared",
        "error" if shared else "ok",
        f"{len(shared)} of {len(replies)} replies were of an agent object ({', '.join(names)}) that "
        f"replied elsewhere at the same time, or remembered another rollout."
        if shared
        else f"None of {len(replies)} replies was of a shared agent object.",
        fix="Make the agents inside the agent function, one set for each rollout; models may be "
        "shared.",
        figures={"replies": len(shared), "agents": names},
    )


def _failed_tools(spans: Sequence[Span]) -> Finding:
    """Check for failed tools: the framework gives the exception to the model as text."""
    return failed_tools(
        spans,
        FRAMEWORK,
        check="agentscope.tools",
        fix="The model gets the exception's message and the reply continues. Fix the tools; where "
        "a call reached none, their names and descriptions mislead the model. What "
        "ends the reply is a middleware whose on_acting raises, and in AgentScope 1 a tool that is an "
        "asynchronous generator.",
    )


def _parked(replies: Sequence[Span]) -> Iterator[Finding]:
    """Check for replies that wait for a permission: they return a message of the framework."""
    last = {
        (span.rollout_id, span.attempt_id, span.agent_run_id): span
        for span in replies
        if FOLDS not in span.attributes  # every reply of version 1 has it
    }
    if not last:
        return
    parked = [span for span in last.values() if span.attributes.get(PARKED)]
    names = sorted({span.agent or "" for span in parked})
    tools = sorted({tool for span in parked for tool in span.attributes[PARKED]})
    yield Finding.of(
        "agentscope.parked",
        "warning" if parked else "ok",
        f"{len(parked)} of {len(last)} replies ({', '.join(names)}) ended with 'I'm waiting for your "
        f"permission': no user permitted the tools {', '.join(tools)}."
        if parked
        else f"None of {len(last)} replies was left waiting for a permission.",
        fix="Give FunctionTool(..., permission=PermissionDecision(behavior=PermissionBehavior.ALLOW, "
        "message='ok')), or continue with agent.reply(UserConfirmResultEvent(...)).",
        figures={"replies": len(parked), "agents": names, "tools": tools},
    )


def _folded(replies: Sequence[Span]) -> Iterator[Finding]:
    """Check for formatters that write a whole conversation into one message."""
    known = [span for span in replies if FOLDS in span.attributes]
    if not known:
        return
    runs: dict[tuple[str, str, str], int] = {}
    for span in known:
        if span.attributes[FOLDS]:
            at = (span.rollout_id, span.attempt_id, span.agent or "")
            runs[at] = runs.get(at, 0) + 1
    names = sorted({agent for (*_, agent), count in runs.items() if count > 1})
    yield Finding.of(
        "agentscope.folded",
        "warning" if names else "ok",
        f"{', '.join(names)} replied more than once, with a formatter that writes the conversation "
        f"into one message: no prompt begins with the one before."
        if names
        else "No agent's conversation was written into one message again and again.",
        fix="Every reply is a trajectory of its own, which costs time but no samples. A formatter "
        "that is not for several agents keeps messages apart; names stay in their `name`.",
        figures={"agents": names},
    )


def _interrupted(replies: Sequence[Span]) -> Iterator[Finding]:
    """Check for replies that were cancelled, as by a timeout, but returned a message."""
    known = [span for span in replies if INTERRUPTED in span.attributes]
    if not known:
        return
    cut = [span for span in known if span.attributes[INTERRUPTED]]
    names = sorted({span.agent or "" for span in cut})
    yield Finding.of(
        "agentscope.interrupted",
        "warning" if cut else "ok",
        f"{len(cut)} of {len(known)} replies ({', '.join(names)}) were cancelled, and the framework "
        f"gave a message of its own for them."
        if cut
        else f"None of {len(known)} replies was cancelled.",
        fix="Raise where message.metadata has _is_interrupted, or override handle_interrupt to raise, "
        "so that the rollout ends as the timeout that it is.",
        figures={"replies": len(cut), "agents": names},
    )


def _closed_loop(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    return failures_saying(
        CLOSED_LOOP,
        records,
        check="agentscope.loop",
        cause="the model's event loop is closed",
        fix="A model belongs to the loop that used it first: make the agent function async "
        "instead of calling asyncio.run in it, or make the model inside of it.",
    )
