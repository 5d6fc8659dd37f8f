"""One model call as a reward reads it: what the agent was asked and what it answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from agl_core import semconv
from agl_core.types import Choice, ModelCall, Span, SpanKind


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a call; None where the backend does not state them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of an attempt, joined from the records of client and gateway."""

    id: str
    agent: str
    """The agent that made it; empty where none is named."""
    messages: list[dict[str, Any]]
    """What was sent, in the form of chat completions."""
    answer: str
    """Text of the answer; of the first choice where there are several."""
    reasoning: str = ""
    """What the backend gave as thinking, apart from the text."""
    tool_calls: list[dict[str, Any]] = []
    """``{"id", "type", "function": {"name", "arguments"}}`` each."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    error: str = ""
    """Why there is no complete answer; empty without an error."""
    record: ModelCall
    """Everything the gateway recorded: tools, sampling, all choices, tokens."""


def agent_calls(spans: Iterable[Span]) -> list[AgentCall]:
    """The calls of an attempt in the order in which they were sent.

    Of the tries of one call the last counts. Calls without an answer are among them.
    """
    clients: dict[str, Span] = {}
    last: dict[str, Span] = {}
    for span in spans:
        if span.call is None:
            if span.kind is SpanKind.LLM and span.call_id is not None:
                clients.setdefault(span.call_id, span)
        elif not span.call.superseded:
            known = last.get(span.call.id)
            if known is None or known.call is None or known.call.tries < span.call.tries:
                last[span.call.id] = span
    calls = [
        _agent_call(span, span.call, clients.get(call_id))
        for call_id, span in last.items()
        if span.call is not None
    ]
    return sorted(calls, key=lambda call: (call.record.started_ns, call.id))


def _agent_call(span: Span, record: ModelCall, client: Span | None) -> AgentCall:
    choice = min(record.choices, key=lambda each: each.index, default=Choice())
    error = record.error or ("" if record.complete else "the answer was cut off before its end")
    attributes = span.attributes
    return AgentCall(
        id=record.id,
        agent=(client.agent if client else None) or record.agent,
        messages=record.messages,
        answer=choice.text,
        reasoning=choice.reasoning,
        tool_calls=choice.tool_calls,
        finish_reason=choice.finish_reason,
        usage=Usage(
            prompt_tokens=attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS),
            completion_tokens=attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS),
        ),
        error=error,
        record=record,
    )
