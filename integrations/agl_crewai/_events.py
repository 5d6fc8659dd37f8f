"""Pure functions that read which span a CrewAI event begins or ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from crewai.tools.tool_failure import ToolFailureReason

from agl_core import semconv
from agl_core.tracing import UNNAMED, SpanStart, tool_attributes
from agl_core.types import SpanKind
from agl_crewai._names import AGENT_ID, DEFERS_RESULTS, RESPECTS_WINDOW, SUMMARIZER, TASK

_LONGEST_NAME: Final = 80


@dataclass(slots=True)
class Beginning:
    """The span that an event begins."""

    start: SpanStart
    """Its agent is empty for an agent without a role, and None if the event names no agent."""
    key: str
    """Id of the crew, task, agent or other part that begins; the closing event has the same."""
    message: tuple[str, Any] | None = None
    """Role and content of the message that the span receives, such as a task's context."""


@dataclass(slots=True)
class Closing:
    """The span that an event ends."""

    opened_by: str
    """Type of the event with which the span began."""
    key: str
    error: BaseException | None = None
    failed: str | None = None
    """Error text of a failure whose exception is not available."""
    failure: Any = None
    """The failure that a tool reported; the next event contains the same object."""
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


def beginning(source: Any, event: Any) -> Beginning | None:
    """Return the span that this event begins; None if it begins none that is recorded."""
    read = _OPENINGS.get(event.type)
    return None if read is None else read(source, event)


def closing(event: Any) -> Closing | None:
    """Return the span that this event ends; None if it ends none that is recorded."""
    found = _CLOSINGS.get(event.type)
    if found is None:
        return None
    opened_by, key = found
    if event.type not in _FAILURES:
        failure = reported(event)
        failed = None if failure is None else failure.message
        done = outcome(event)
        return Closing(opened_by, key(event), failed=failed, failure=failure, attributes=done)
    error = exception(event)
    failed = (str(event.error) or event.type) if error is None else None
    return Closing(opened_by, key(event), error=error, failed=failed)


def refused(event: Any) -> Beginning | None:
    """Return a tool call that reached no tool: its name is unknown, or its arguments are invalid.

    If CrewAI looked for the tool, as with unknown names, other events report the call as well.
    """
    if event.type != "tool_failure_detected" or event.failure.reason not in _REFUSALS:
        return None
    return _tool(None, event)


def _crew(source: Any, event: Any) -> Beginning:
    del source
    return _operation(event.crew_name or "crew", _crew_key(event))


def _flow(source: Any, event: Any) -> Beginning | None:
    if _is_internal(source):
        return None
    return _operation(event.flow_name, event.flow_name)


def _method(source: Any, event: Any) -> Beginning | None:
    if _is_internal(source):
        return None
    return _operation(event.method_name, _method_key(event))


def _is_internal(source: Any) -> bool:
    """Return whether a flow is part of CrewAI, such as an agent's loop or the memory."""
    return bool(getattr(source, "is_crewai_internal", False))


def _task(source: Any, event: Any) -> Beginning:
    del source
    name = (event.task_name or "task").strip()
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    begun = _operation(short, _task_key(event))
    begun.message = ("context", event.context) if event.context else None
    return begun


def _operation(name: str, key: str) -> Beginning:
    return Beginning(SpanStart(SpanKind.OPERATION, name), key)


def _agent(source: Any, event: Any) -> Beginning:
    del source
    task = event.task_prompt
    return _agent_run(event.agent, event.agent.role, _agent_key(event), task)


def _lite_agent(source: Any, event: Any) -> Beginning:
    return _agent_run(source, event.agent_info["role"], _lite_key(event), event.messages)


def _agent_run(agent: Any, given: str, key: str, task: Any) -> Beginning:
    role = _role(given)
    start = SpanStart(
        SpanKind.AGENT if role else SpanKind.OPERATION,
        role or UNNAMED,
        scope="agent",
        agent=role,
        attributes={TASK: task, **_facts(agent)},
    )
    return Beginning(start, key, message=("handoff", task))


def _tool(source: Any, event: Any) -> Beginning:
    del source
    attributes = tool_attributes(event.tool_name, event.tool_args)
    return Beginning(
        SpanStart(SpanKind.TOOL, event.tool_name, attributes=attributes), event.tool_name
    )


def _call(source: Any, event: Any) -> Beginning:
    del source
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: event.model,
    }
    start = SpanStart(
        SpanKind.LLM,
        "chat",
        agent=None if event.agent_role is None else _role(event.agent_role),
        attributes={name: value for name, value in attributes.items() if value is not None},
    )
    return Beginning(start, event.call_id)


def _summary(source: Any, event: Any) -> Beginning:
    del source, event
    start = SpanStart(SpanKind.AGENT, SUMMARIZER, agent=SUMMARIZER, trainable=False)
    return Beginning(start, "")


def _guardrail(source: Any, event: Any) -> Beginning | None:
    """Return a guardrail that calls a model; None for a function, which is the user's code."""
    del source
    if event.guardrail_type not in _ASKING_GUARDRAILS:
        return None
    start = SpanStart(SpanKind.OPERATION, "guardrail", trainable=False)
    return Beginning(start, event.guardrail_type)


def _role(role: str) -> str:
    return role.strip()


def _facts(agent: Any) -> dict[str, Any]:
    """Return the agent's id and the settings that let CrewAI rewrite its prompts."""
    found = {
        AGENT_ID: str(agent.id) if getattr(agent, "id", None) is not None else None,
        RESPECTS_WINDOW: getattr(agent, "respect_context_window", None),
        DEFERS_RESULTS: getattr(agent, "use_better_compaction", None),
    }
    return {name: value for name, value in found.items() if value is not None}


def _crew_key(event: Any) -> str:
    return event.crew_name or ""


def _method_key(event: Any) -> str:
    return f"{event.flow_name}.{event.method_name}"


def _task_key(event: Any) -> str:
    return str(event.task_id)


def _agent_key(event: Any) -> str:
    return str(event.agent.id)


def _named(field_name: str) -> Callable[[Any], str]:
    return lambda event: getattr(event, field_name)


def _lite_key(event: Any) -> str:
    return _role(event.agent_info["role"])


def _no_key(event: Any) -> str:
    del event
    return ""


def outcome(event: Any) -> dict[str, Any]:
    """Return the attributes of a finished tool or model call."""
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
    """Return the failure that a tool reported without raising; None if there is none."""
    return event.failure if event.type == "tool_usage_finished" else None


def exception(event: Any) -> BaseException | None:
    """Return the exception of a failure event; None if it is not available.

    An event often has only the exception's text, and is emitted while the exception is handled.
    """
    given = event.error
    if isinstance(given, BaseException):
        return given
    raised = sys.exc_info()[1]
    if raised is None:
        return None
    return raised if (str(raised) in str(given) if str(raised) else not given) else None


_REFUSALS: Final = (ToolFailureReason.UNKNOWN_TOOL, ToolFailureReason.INVALID_INPUT)
_ASKING_GUARDRAILS: Final = ("llm", "hallucination")
_OPENINGS: Final[Mapping[str, Callable[[Any, Any], Beginning | None]]] = {
    "crew_kickoff_started": _crew,
    "flow_started": _flow,
    "method_execution_started": _method,
    "task_started": _task,
    "agent_execution_started": _agent,
    "lite_agent_execution_started": _lite_agent,
    "tool_usage_started": _tool,
    "llm_call_started": _call,
    "context_window_summarization_started": _summary,
    "llm_guardrail_started": _guardrail,
}

_CLOSINGS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "crew_kickoff_completed": ("crew_kickoff_started", _crew_key),
    "crew_kickoff_failed": ("crew_kickoff_started", _crew_key),
    "flow_finished": ("flow_started", _named("flow_name")),
    "flow_failed": ("flow_started", _named("flow_name")),
    "flow_paused": ("flow_started", _named("flow_name")),
    "method_execution_finished": ("method_execution_started", _method_key),
    "method_execution_failed": ("method_execution_started", _method_key),
    "method_execution_paused": ("method_execution_started", _method_key),
    "task_completed": ("task_started", _task_key),
    "task_failed": ("task_started", _task_key),
    "agent_execution_completed": ("agent_execution_started", _agent_key),
    "agent_execution_error": ("agent_execution_started", _agent_key),
    "lite_agent_execution_completed": ("lite_agent_execution_started", _lite_key),
    "lite_agent_execution_error": ("lite_agent_execution_started", _lite_key),
    "tool_usage_finished": ("tool_usage_started", _named("tool_name")),
    "tool_usage_error": ("tool_usage_started", _named("tool_name")),
    "llm_call_completed": ("llm_call_started", _named("call_id")),
    "llm_call_failed": ("llm_call_started", _named("call_id")),
    "context_window_summarization_completed": ("context_window_summarization_started", _no_key),
    "context_window_summarization_failed": ("context_window_summarization_started", _no_key),
    "llm_guardrail_completed": ("llm_guardrail_started", _named("guardrail_type")),
}

_FAILURES: Final = frozenset(
    {
        "crew_kickoff_failed",
        "flow_failed",
        "method_execution_failed",
        "task_failed",
        "agent_execution_error",
        "lite_agent_execution_error",
        "tool_usage_error",
        "llm_call_failed",
        "context_window_summarization_failed",
    }
)
