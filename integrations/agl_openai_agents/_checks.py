"""Checks of ``agl doctor`` for common errors with the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agl_checks import CLOSED_LOOP, failures_saying, is_from, records_from

from agl_core.interfaces import AttemptRecord
from agl_core.tracing import UNNAMED
from agl_core.types import Finding, Span, SpanKind
from agl_openai_agents._shapes import FRAMEWORK, UNTRACED

_UNSERVED: Final = "unsupported_parameter: "
"""First words of the error in the record of a refused Responses request."""


def pitfalls(records: Sequence[AttemptRecord], config: Any) -> Iterator[Finding]:
    """Check the recorded attempts; yield nothing if the SDK recorded no spans."""
    del config
    spans = [span for record in records for span in record.spans if _is_ours(span)]
    if not spans:
        return
    yield _untraced(spans)
    yield _unnamed(spans)
    yield _unowned([span for record in records for span in record.spans if span.call is None])
    yield _unsent(spans)
    yield _failed_tools(spans)
    yield from _unserved(records_from(records, FRAMEWORK))
    yield from _closed_loop(records)


def _is_ours(span: Span) -> bool:
    return is_from(span, FRAMEWORK)


def _untraced(spans: Sequence[Span]) -> Finding:
    """Check that tracing is on; without it agents cannot be distinguished."""
    found = [span for span in spans if span.name == UNTRACED]
    return Finding.of(
        "openai_agents.tracing",
        "error" if found else "ok",
        f"{len(found)} attempts ran with tracing disabled, so their agents are unknown: "
        f"{found[0].error}"
        if found
        else "Tracing is on where agents run.",
        fix="Leave tracing on: no RunConfig(tracing_disabled=True), no set_tracing_disabled(True), "
        "no OPENAI_AGENTS_DISABLE_TRACING. Rollouts send nothing to OpenAI, with or without a key.",
        figures={"attempts": len(found)},
    )


def _unnamed(spans: Sequence[Span]) -> Finding:
    unnamed = sum(span.kind is SpanKind.OPERATION and span.name == UNNAMED for span in spans)
    return Finding.of(
        "openai_agents.names",
        "warning" if unnamed else "ok",
        f"{unnamed} runs of agents without a name, whose calls have no agent."
        if unnamed
        else "Every agent has a name.",
        fix="Name each agent, Agent(name='writer', ...): the name is what agents=[...] selects.",
        figures={"runs": unnamed},
    )


def _unowned(spans: Sequence[Span]) -> Finding:
    """Check for models that tools, guardrails or handoffs call directly: they have no agent."""
    by_id = {span.id: span for span in spans if _is_ours(span)}
    lost = [s for s in spans if s.kind is SpanKind.LLM and not s.agent and _within_tool(s, by_id)]
    return Finding.of(
        "openai_agents.unowned",
        "warning" if lost else "ok",
        f"{len(lost)} models asked in tools, guardrails or handoffs have no agent."
        if lost
        else "No model asked in a tool, guardrail or handoff has no agent.",
        fix="Ask it through an agent of its own, Runner.run(Agent(name=...), ...), or name it with "
        "agl.agent_scope(name).",
        figures={"calls": len(lost)},
    )


def _within_tool(span: Span, by_id: Mapping[str, Span]) -> bool:
    """Return whether the innermost SDK span around this one is a tool, guardrail or handoff."""
    above = by_id.get(span.parent_id or "")
    while above is not None and above.kind is not SpanKind.AGENT:
        if above.kind is SpanKind.TOOL or above.agent:
            return True
        above = by_id.get(above.parent_id or "")
    return False


def _unsent(spans: Sequence[Span]) -> Finding:
    """Check for calls over a WebSocket or to another address: the gateway has no tokens of them."""
    unsent = sum(
        span.kind is SpanKind.LLM and span.call_id is None and span.status == "ok" for span in spans
    )
    return Finding.of(
        "openai_agents.unsent",
        "error" if unsent else "ok",
        f"{unsent} model calls were answered without a request through the gateway."
        if unsent
        else "Every answered model call went through the gateway.",
        fix="Let the model use OPENAI_BASE_URL, with a client made inside the agent function, and "
        "HTTP: no set_default_openai_responses_transport('websocket').",
        figures={"unsent": unsent},
    )


def _failed_tools(spans: Sequence[Span]) -> Finding:
    """Check for failed tools: the SDK gives the exception to the model as text and continues."""
    failed = sorted({s.name for s in spans if s.kind is SpanKind.TOOL and s.status == "error"})
    return Finding.of(
        "openai_agents.tools",
        "warning" if failed else "ok",
        f"Tools failed: {', '.join(failed)}. By default the model gets the error, and the run continues."
        if failed
        else "No tool failed.",
        fix="See the tool's span. @function_tool(failure_error_function=None) ends the run with "
        "the exception instead, so that the attempt fails and is not trained.",
        figures={"tools": failed},
    )


def _unserved(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    """Check for refused requests: conversations, stored prompts, hosted tools are OpenAI's only."""
    calls = [span.call for record in records for span in record.spans if span.call is not None]
    refused = [call.error for call in calls if call.error.startswith(_UNSERVED)]
    if refused:
        yield Finding.of(
            "openai_agents.unserved",
            "error",
            f"{len(refused)} of {len(calls)} requests ask for what only OpenAI serves, and were "
            f"refused: {refused[0].removeprefix(_UNSERVED)}",
            fix="Keep conversations in a session, SQLiteSession('id'), instead of conversation_id "
            "and previous_response_id, and give agents function tools instead of hosted ones.",
            figures={"calls": len(refused)},
        )


def _closed_loop(records: Sequence[AttemptRecord]) -> Iterator[Finding]:
    """Check for closed event loops: the process shares the default client, bound to one loop."""
    return failures_saying(
        CLOSED_LOOP,
        records_from(records, FRAMEWORK),
        check="openai_agents.loop",
        cause="the client's event loop is closed",
        fix="Make the agent function async and await Runner.run in it, or give each model "
        "openai_client=AsyncOpenAI() of its own.",
    )
