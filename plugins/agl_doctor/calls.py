"""The agent of each recorded call; unlike the join, without errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import ModelCall, Span, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedCall:
    """One recorded model call and who made it."""

    call: ModelCall
    agent: str
    """Empty: no agent is named."""
    agent_run_id: str
    """Empty: runs of the agent cannot be distinguished."""
    in_tool: bool
    """It was sent while a tool ran."""
    prompt_tokens: int | None
    """None: the record has neither ids nor usage."""
    answer_tokens: int | None
    """Of the longest choice."""

    @property
    def known_as(self) -> str:
        """Name that policies and the selection go by."""
        return self.call.alias or self.agent

    @property
    def answered(self) -> bool:
        return self.call.complete and self.call.status_code < 400  # noqa: PLR2004 (HTTP errors)


def owned_calls(record: AttemptRecord) -> list[OwnedCall]:
    """The calls of an attempt in order of time, earlier tries of retried ones left out."""
    spans = {span.id: span for span in record.spans}
    structure = {
        span.call_id: span
        for span in record.spans
        if span.kind is SpanKind.LLM and span.call is None and span.call_id
    }
    found: list[OwnedCall] = []
    for span in record.spans:
        call = span.call
        if call is None or call.superseded:
            continue
        traced = structure.get(call.id)
        prompt, answer = _lengths(span, call)
        found.append(
            OwnedCall(
                call=call,
                agent=(traced.agent if traced else None) or call.agent,
                agent_run_id=(traced.agent_run_id if traced else None) or call.agent_run_id,
                in_tool=traced is not None and _in_tool(traced, spans),
                prompt_tokens=prompt,
                answer_tokens=answer,
            )
        )
    return sorted(found, key=lambda owned: (owned.call.started_ns, owned.call.id))


def _in_tool(span: Span, spans: Mapping[str, Span]) -> bool:
    visited: set[str] = set()
    above = spans.get(span.parent_id or "")
    while above is not None and above.id not in visited:
        if above.kind is SpanKind.TOOL:
            return True
        visited.add(above.id)
        above = spans.get(above.parent_id or "")
    return False


def _lengths(span: Span, call: ModelCall) -> tuple[int | None, int | None]:
    """From the ids; from the backend's usage where there are none."""
    if call.prompt_token_ids and call.choices:
        return len(call.prompt_token_ids), max(len(choice.token_ids) for choice in call.choices)
    prompt = span.attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS)
    answer = span.attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
    return (
        prompt if isinstance(prompt, int) else None,
        answer if isinstance(answer, int) else None,
    )
