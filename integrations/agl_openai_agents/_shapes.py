"""Pure functions that read the SDK's span data at the start and the end of a span."""

from __future__ import annotations

import json
from typing import Any, Final

from agl_core import semconv
from agl_core.tracing import UNNAMED, SpanStart, Tracer
from agl_core.types import ScopeKind, SpanKind

FRAMEWORK: Final = "openai_agents"
HANDOFF: Final = "handoff"
TRACER: Final = Tracer(FRAMEWORK)
UNTRACED: Final = "agl.openai_agents.tracing_disabled"
"""Name of the span with the reason why an attempt's agents are unknown."""
_GUARDRAIL_TRIGGERED: Final = "agl.guardrail.triggered"


_GROUPS: Final = frozenset({"task", "turn"})
_KINDS: Final[dict[str, tuple[SpanKind, ScopeKind]]] = {
    "agent": (SpanKind.AGENT, "agent"),
    "generation": (SpanKind.LLM, "call"),
    "response": (SpanKind.LLM, "call"),
    "function": (SpanKind.TOOL, "tool"),
    HANDOFF: (SpanKind.MESSAGE, "tool"),
    "guardrail": (SpanKind.OPERATION, "tool"),
}


def start_of(data: Any) -> SpanStart | None:
    """Return how to open a span with this data; None for a span that only groups others.

    The scope kind is ``tool`` when the span runs user code, whose model calls have no agent.
    """
    kind: str = data.type
    if kind in _GROUPS:
        return None
    name: str = _name(data)
    recorded, scope = _KINDS.get(kind, (SpanKind.OPERATION, "operation"))
    if recorded is SpanKind.AGENT:
        if not name:
            return SpanStart(SpanKind.OPERATION, UNNAMED)
        return SpanStart(recorded, name, agent=name, new_run=True)
    if recorded is SpanKind.TOOL:
        return SpanStart(recorded, name, attributes={semconv.GEN_AI_TOOL_NAME: name})
    return SpanStart(recorded, name or kind, scope=scope)


def _name(data: Any) -> str:
    """Return the name in a span's data; for a model call, the model's name."""
    return str(getattr(data, "name", None) or getattr(data, "model", None) or "")


def results_of(data: Any) -> dict[str, Any]:
    """Return a span's attributes at its end."""
    read = _RESULTS.get(data.type)
    found = read(data) if read is not None else {}
    return {name: value for name, value in found.items() if value is not None}


def _tool(data: Any) -> dict[str, Any]:
    return {
        semconv.GEN_AI_TOOL_ARGUMENTS: _parsed(data.input),
        semconv.GEN_AI_TOOL_RESULT: data.output,
    }


def _generation(data: Any) -> dict[str, Any]:
    return {semconv.GEN_AI_REQUEST_MODEL: data.model, **_usage(data.usage)}


def _response(data: Any) -> dict[str, Any]:
    response = data.response
    return {
        semconv.GEN_AI_RESPONSE_ID: getattr(response, "id", None),
        semconv.GEN_AI_RESPONSE_MODEL: getattr(response, "model", None),
        **_usage(data.usage),
    }


def _usage(usage: Any) -> dict[str, Any]:
    counted: dict[str, Any] = usage or {}
    if not counted.get("input_tokens"):  # a stream without usage gives 0
        return {}
    return {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: counted.get("input_tokens"),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: counted.get("output_tokens"),
    }


def _handoff(data: Any) -> dict[str, Any]:
    return {semconv.AGL_HANDOFF_FROM: data.from_agent, semconv.AGL_HANDOFF_TO: data.to_agent}


def _guardrail(data: Any) -> dict[str, Any]:
    return {_GUARDRAIL_TRIGGERED: data.triggered}


def _custom(data: Any) -> dict[str, Any]:
    return {semconv.AGL_OBJECT: data.data or None}


_RESULTS: Final = {
    "function": _tool,
    "generation": _generation,
    "response": _response,
    HANDOFF: _handoff,
    "guardrail": _guardrail,
    "custom": _custom,
}


def _parsed(arguments: str | None) -> Any:
    """Parse a tool's arguments as JSON; return the model's text if they are not JSON."""
    try:
        return json.loads(arguments) if arguments else arguments
    except (ValueError, RecursionError):
        return arguments
