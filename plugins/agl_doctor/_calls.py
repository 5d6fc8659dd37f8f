"""The agent of each recorded call. Unlike the join, this never raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import ModelCall, Span, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedCall:
    """A recorded model call and its agent."""

    call: ModelCall
    agent: str
    """Name of the agent; empty if the call has none."""
    agent_run_id: str
    """Id of the agent run; empty if runs of the agent cannot be distinguished."""
    in_tool: bool
    """Whether the call was sent while a tool ran."""
    prompt_tokens: int | None
    """Length of the prompt; None if the record has neither ids nor usage."""
    answer_tokens: int | None
    """Length of the longest choice."""

    @property
    def known_as(self) -> str:
        """Name by which policies and the selection refer to the agent."""
        return self.call.alias or self.agent

    @property
    def answered(self) -> bool:
        return self.call.complete and self.call.status_code < 400  # noqa: PLR2004 (HTTP errors)


def owned_calls(record: AttemptRecord) -> list[OwnedCall]:
    """Return the calls of an attempt in order of time, without superseded tries."""
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
    """Return the lengths of prompt and answer from the ids, else from the backend's usage."""
    if call.prompt_token_ids and call.choices:
        return len(call.prompt_token_ids), max(len(choice.token_ids) for choice in call.choices)
    prompt = span.attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS)
    answer = span.attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
    return (
        prompt if isinstance(prompt, int) else None,
        answer if isinstance(answer, int) else None,
    )
