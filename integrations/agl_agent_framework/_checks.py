"""Checks of ``agl doctor`` for common errors with Microsoft Agent Framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agl_checks import (
    CLOSED_LOOP,
    failed_tools,
    failures_saying,
    is_from,
    records_from,
)

from agl_agent_framework._spans import FRAMEWORK
from agl_core.interfaces import AttemptRecord
from agl_core.tracing import UNNAMED
from agl_core.types import Finding, Span, SpanKind


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check the recorded attempts; yield nothing if the framework recorded no spans."""
    del config
    ours = records_from(records, FRAMEWORK)
    if not ours:
        return
    spans = [span for record in ours for span in record.spans]
    yield _unnamed(spans)
    yield _nobodys(spans)
    yield _failed_tools(spans)
    yield _lost_reasoning(spans)
    yield from _closed_loop(ours)


def _is_ours(span: Span) -> bool:
    return is_from(span, FRAMEWORK)


def _unnamed(spans: Sequence[Span]) -> Finding:
    """Check for unnamed agents: they have only a random id, which cannot be selected."""
    runs = sum(
        span.kind is SpanKind.OPERATION and span.name == UNNAMED and _is_ours(span)
        for span in spans
    )
    return Finding.of(
        "agent_framework.names",
        "warning" if runs else "ok",
        f"{runs} runs are of agents without a name, whose calls have no agent."
        if runs
        else "Every agent that ran has a name.",
        fix="Name each agent: Agent(client, name='writer').",
        figures={"runs": runs},
    )


def _nobodys(spans: Sequence[Span]) -> Finding:
    """Check for model calls in tools without an agent: they cannot be trained."""
    by_id = {span.id: span for span in spans}
    lost = [
        span
        for span in spans
        if span.kind is SpanKind.LLM
        and span.call is None
        and not span.agent
        and _in_agent(span, by_id)
    ]
    return Finding.of(
        "agent_framework.unowned",
        "warning" if lost else "ok",
        f"{len(lost)} model calls in tools of agents have no agent."
        if lost
        else "No model call in an agent's tool has no agent.",
        fix="Let a named agent make them, or put them in agl.agent_scope('judge', trainable=False).",
        figures={"calls": len(lost)},
    )


def _in_agent(span: Span, by_id: Mapping[str, Span]) -> bool:
    above, left = by_id.get(span.parent_id or ""), len(by_id)
    while above is not None and left:
        if above.kind is SpanKind.AGENT and _is_ours(above):
            return True
        above, left = by_id.get(above.parent_id or ""), left - 1
    return False


def _failed_tools(spans: Sequence[Span]) -> Finding:
    """Check for failed tools: the model gets a short message instead of the exception."""
    return failed_tools(
        spans,
        FRAMEWORK,
        check="agent_framework.tools",
        fix="The model sees 'Error: Function failed.', or that there is no such function, and the "
        "run continues. Fix the tools, and their descriptions; the chat client's "
        "function_invocation_configuration={'include_detailed_errors': True} shows the model more, "
        "and a function middleware that raises MiddlewareFailure ends the run.",
    )


def _lost_reasoning(spans: Sequence[Span]) -> Finding:
    """Check for parsed reasoning: the chat completion client keeps only an answer's text."""
    calls = [span.call for span in spans if span.call is not None]
    reasoned = sum(any(choice.reasoning for choice in call.choices) for call in calls)
    return Finding.of(
        "agent_framework.reasoning",
        "warning" if reasoned else "ok",
        f"{reasoned} of {len(calls)} answers came with their reasoning in a field of its own, "
        f"which OpenAIChatCompletionClient drops: the next turn's prompt lacks it."
        if reasoned
        else f"None of {len(calls)} answers had its reasoning in a field of its own.",
        fix="Give OpenAIChatCompletionClient a response_parser that keeps message.reasoning and a "
        "message_preparer that sends it again, or serve without a reasoning parser: text in "
        "<think> tags is kept as it is.",
        figures={"calls": reasoned},
    )


def _closed_loop(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    return failures_saying(
        CLOSED_LOOP,
        records,
        check="agent_framework.loop",
        cause="the client's event loop is closed",
        fix="A chat client belongs to the loop that used it first: make the agent function "
        "async instead of calling asyncio.run in it, or make the client inside of it.",
    )
