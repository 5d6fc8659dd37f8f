"""Read the framework's objects as span attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from agent_framework import ChatResponse, Content
from pydantic import BaseModel

from agl_agent_framework._spans import FRAMEWORK, TRACER
from agl_core import semconv
from agl_core.tracing import SpanScope, guarded, handoff

_TARGET: Final = "handoff_to"
"""The only key in the tool result by which `HandoffBuilder` marks a handoff."""


def answer(response: Any) -> Mapping[str, Any]:
    """Return the id, model, finish reason and usage of a model's answer."""
    if not isinstance(response, ChatResponse):
        return {}
    usage = response.usage_details or {}
    finish = response.finish_reason
    found = {
        semconv.GEN_AI_RESPONSE_ID: response.response_id,
        semconv.GEN_AI_RESPONSE_MODEL: response.model,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [str(finish)] if finish else None,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.get("input_token_count"),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.get("output_token_count"),
    }
    return {name: value for name, value in found.items() if value is not None}


def arguments(given: Any) -> Any:
    """Return a tool's arguments as plain data."""
    return given.model_dump() if isinstance(given, BaseModel) else given


def tool_result(result: Any) -> Mapping[str, Any]:
    """Return a tool's result: a string if it has only text, else the framework's form."""
    return {semconv.GEN_AI_TOOL_RESULT: _plain(result)}


@guarded(FRAMEWORK)
def record_handoff(tool: SpanScope, result: Any) -> None:
    """Record the result of a tool that stopped the run, and a handoff if the result is one."""
    plain = _plain(result)
    tool.set_attributes({semconv.GEN_AI_TOOL_RESULT: plain})
    target = _target(plain)
    if target is not None:
        source, run_id = tool.span_agent, tool.span_run_id
        start = handoff(source, target, agent=source, agent_run_id=run_id)
        TRACER.open(tool.recorder, start).end()


def _target(result: Any) -> str | None:
    if isinstance(result, str):
        with suppress(ValueError):
            result = json.loads(result)
    if not isinstance(result, Mapping):
        return None
    fields = cast("Mapping[str, Any]", result)
    target = fields.get(_TARGET)
    return target if len(fields) == 1 and isinstance(target, str) else None


def _plain(result: Any) -> Any:
    if isinstance(result, Content):
        if result.type == "function_result":
            return result.result
        return result.text if result.type == "text" else result.to_dict()
    if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
        parts = [_plain(part) for part in cast("Sequence[Any]", result)]
        if parts and all(isinstance(part, str) for part in parts):
            return "".join(parts)
        return parts
    return result
