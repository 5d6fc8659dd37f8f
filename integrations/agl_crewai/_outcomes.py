"""CrewAI's closing events, read: what came of a tool, a model call or an agent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from agl_core import semconv


def outcome(event: Any) -> dict[str, Any]:
    """What came of a tool or a model call."""
    if event.type == "tool_usage_finished":
        return {semconv.GEN_AI_TOOL_RESULT: event.output}
    if event.type != "llm_call_completed":
        return {}
    usage: Mapping[str, Any] = event.usage or {}
    found = {
        semconv.GEN_AI_RESPONSE_ID: event.response_id,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [event.finish_reason]
        if event.finish_reason
        else None,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.get("prompt_tokens"),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.get("completion_tokens"),
    }
    return {name: value for name, value in found.items() if value is not None}


def reported(event: Any) -> Any:
    """What a tool that raised nothing has reported of its failure; None where it has not."""
    return event.failure if event.type == "tool_usage_finished" else None


def exception(event: Any) -> BaseException | None:
    """What was raised: an event often has nothing but its text, and is emitted where it is caught."""
    told = event.error
    if isinstance(told, BaseException):
        return told
    raised = sys.exc_info()[1]
    if raised is None:
        return None
    return raised if (str(raised) in str(told) if str(raised) else not told) else None
