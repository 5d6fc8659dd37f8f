"""CrewAI's events, read: what each one opens or closes. Free of any state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from crewai.tools.tool_failure import ToolFailureReason

from agl_core import semconv
from agl_core.tracing import UNNAMED
from agl_core.types import ScopeKind, SpanKind
from agl_crewai._names import AGENT_ID, DEFERS_RESULTS, RESPECTS_WINDOW, SUMMARIZER, TASK
from agl_crewai._outcomes import exception, outcome, reported

_LONGEST_NAME: Final = 80


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Opening:
    """An event with which something begins."""

    kind: SpanKind
    scope: ScopeKind
    name: str
    key: str
    """Tells what goes on at one time apart, as the closing event names it."""
    agent: str | None = None
    """Empty for an agent without a role, None where no agent is named."""
    trainable: bool = True
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    message: tuple[str, Any] | None = None
    """Role and content of what is handed on to what begins."""


@dataclass(slots=True)
class Closing:
    """An event with which something ends."""

    opened_by: str
    """Type of the event with which it began."""
    key: str
    error: BaseException | None = None
    failed: str = ""
    """What went wrong, where the exception is not to be had."""
    failure: Any = None
    """What a tool has reported, as the event after this one has it again."""
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


def opening(source: Any, event: Any) -> Opening | None:
    """What begins with this event; None where it begins nothing that is recorded."""
    read = _OPENINGS.get(event.type)
    return None if read is None else read(source, event)


def closing(event: Any) -> Closing | None:
    """What ends with this event; None where it ends nothing that is recorded."""
    found = _CLOSINGS.get(event.type)
    if found is None:
        return None
    opened_by, key = found
    if event.type not in _FAILURES:
        failure = reported(event)
        failed = "" if failure is None else failure.message
        done = outcome(event)
        return Closing(opened_by, key(event), failed=failed, failure=failure, attributes=done)
    error = exception(event)
    failed = (str(event.error) or event.type) if error is None else ""
    return Closing(opened_by, key(event), error=error, failed=failed)


def refused(event: Any) -> Opening | None:
    """A tool call that reached no tool: what the model asked for is unknown, or cannot be read.

    Where a tool has been looked for, as for unknown names, other events tell of the call as well.
    """
    if event.type != "tool_failure_detected" or event.failure.reason not in _REFUSALS:
        return None
    return _tool(None, event)


def _crew(source: Any, event: Any) -> Opening:
    del source
    return Opening(SpanKind.OPERATION, "operation", event.crew_name or "crew", _crew_key(event))


def _flow(source: Any, event: Any) -> Opening | None:
    if _is_internal(source):
        return None
    return Opening(SpanKind.OPERATION, "operation", event.flow_name, event.flow_name)


def _method(source: Any, event: Any) -> Opening | None:
    if _is_internal(source):
        return None
    return Opening(SpanKind.OPERATION, "operation", event.method_name, _method_key(event))


def _is_internal(source: Any) -> bool:
    """Whether a flow is part of CrewAI: an agent's loop and the memory are flows too."""
    return bool(getattr(source, "is_crewai_internal", False))


def _task(source: Any, event: Any) -> Opening:
    del source
    name = (event.task_name or "task").strip()
    return Opening(
        SpanKind.OPERATION,
        "operation",
        name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
        _task_key(event),
        message=("context", event.context) if event.context else None,
    )


def _agent(source: Any, event: Any) -> Opening:
    del source
    task = event.task_prompt
    return _agent_run(event.agent, event.agent.role, _agent_key(event), task)


def _lite_agent(source: Any, event: Any) -> Opening:
    return _agent_run(source, event.agent_info["role"], _lite_key(event), event.messages)


def _agent_run(agent: Any, given: str, key: str, task: Any) -> Opening:
    role = _role(given)
    return Opening(
        SpanKind.AGENT if role else SpanKind.OPERATION,
        "agent",
        role or UNNAMED,
        key,
        agent=role,
        attributes={TASK: task, **_facts(agent)},
        message=("handoff", task),
    )


def _tool(source: Any, event: Any) -> Opening:
    del source
    return Opening(
        SpanKind.TOOL,
        "tool",
        event.tool_name,
        event.tool_name,
        attributes={
            semconv.GEN_AI_TOOL_NAME: event.tool_name,
            semconv.GEN_AI_TOOL_ARGUMENTS: event.tool_args,
        },
    )


def _call(source: Any, event: Any) -> Opening:
    del source
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: event.model,
    }
    return Opening(
        SpanKind.LLM,
        "call",
        "chat",
        event.call_id,
        agent=None if event.agent_role is None else _role(event.agent_role),
        attributes={name: value for name, value in attributes.items() if value is not None},
    )


def _summary(source: Any, event: Any) -> Opening:
    del source, event
    return Opening(SpanKind.AGENT, "agent", SUMMARIZER, "", agent=SUMMARIZER, trainable=False)


def _guardrail(source: Any, event: Any) -> Opening | None:
    """A guardrail for which CrewAI asks a model; one that is a function is the user's code."""
    del source
    if event.guardrail_type not in _ASKING_GUARDRAILS:
        return None
    return Opening(
        SpanKind.OPERATION, "operation", "guardrail", event.guardrail_type, trainable=False
    )


def _role(role: str) -> str:
    return role.strip()


def _facts(agent: Any) -> dict[str, Any]:
    """Which agent it is, and the settings under which CrewAI rewrites what its model is sent."""
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


_REFUSALS: Final = (ToolFailureReason.UNKNOWN_TOOL, ToolFailureReason.INVALID_INPUT)
_ASKING_GUARDRAILS: Final = ("llm", "hallucination")
_OPENINGS: Final[Mapping[str, Callable[[Any, Any], Opening | None]]] = {
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
