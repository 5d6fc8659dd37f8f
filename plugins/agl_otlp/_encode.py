"""Recorded attempts as OTLP traces: one trace per attempt, with gen_ai attribute names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, cast

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.text import exact_bytes, replaced
from agl_core.thinking import Part
from agl_core.types import AttemptStatus, Choice, ModelCall, Reward, Span, SpanKind
from agl_otlp._values import attributes_of

_INTERNAL: Final = 1
_SERVER: Final = 2
_CLIENT: Final = 3
_STATUS: Final = {"unset": 0, "ok": 1, "error": 2}
_NS_PER_S: Final = 1e9
_PART_TYPES: Final = {"thinking": "reasoning", "text": "text"}
_USAGE: Final = (semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
_OPERATIONS: Final = {
    SpanKind.AGENT: "invoke_agent",
    SpanKind.LLM: "chat",
    SpanKind.TOOL: "execute_tool",
}


def request(attempts: Iterable[dict[str, Any]]) -> bytes:
    """Return the body of an export request for results of `encode_attempt`."""
    return json.dumps({"resourceSpans": list(attempts)}, separators=(",", ":")).encode()


def encode_attempt(record: AttemptRecord, *, content: bool = False) -> dict[str, Any]:
    """Return one attempt as OTLP's ResourceSpans: a root span for the attempt, its spans below.

    A call that both recorders saw is two spans, the gateway's below the client's. Only one of them
    states the usage of the call, so that the sum over a trace is correct: the gateway's span, else
    the innermost that states it. On the others it is renamed (`semconv.AGL_REPEATED`).

    Args:
        record: An ended attempt.
        content: Also send prompts and answers, as ``gen_ai.*.messages``.
    """
    rollout, attempt = record.rollout, record.attempt
    resource = {
        "service.name": "agl",
        "agl.run": rollout.run_id,
        semconv.AGL_ROLLOUT: rollout.id,
        semconv.AGL_ATTEMPT: attempt.id,
        "agl.task": rollout.task.id,
        "agl.mode": rollout.mode,
        "agl.step": rollout.step,
    }
    callers = {s.call_id: s for s in record.spans if s.call_id is not None and s.call is None}
    below = [
        callers[span.call_id].id
        if span.call is not None and span.call_id in callers
        else span.parent_id
        for span in record.spans
    ]
    repeats = _repeating_usage(record.spans, below)
    spans = [_root(record)]
    for span, parent, repeated in zip(record.spans, below, repeats, strict=True):
        row = _span(span, below=parent, repeated=repeated, content=content)
        spans.append(row)
    scope = {"name": "agl_core"}
    return {
        "resource": {"attributes": attributes_of(resource)},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }


def trace_id(attempt_id: str) -> str:
    """Return the hex id of an attempt's trace."""
    return _digest(16, attempt_id)


def span_id(attempt_id: str, own_id: str) -> str:
    """Return the hex id of an attempt's span; the root span's for an empty id."""
    return _digest(8, attempt_id, own_id)


def _digest(size: int, *parts: str) -> str:
    data = exact_bytes("\0".join(parts))
    return blake2b(data, digest_size=size).hexdigest()


def _root(record: AttemptRecord) -> dict[str, Any]:
    rollout, attempt = record.rollout, record.attempt
    ended = attempt.ended_at if attempt.ended_at is not None else attempt.started_at
    failure = attempt.failure
    attributes: dict[str, Any] = {
        semconv.AGL_KIND: "attempt",
        "agl.status": attempt.status.value,
        "agl.fence": attempt.fence,
        "agl.worker": attempt.worker,
    }
    if failure is not None:
        attributes["agl.failure"] = failure.kind.value
        attributes[semconv.EXCEPTION_TYPE] = failure.type
        attributes[semconv.EXCEPTION_STACKTRACE] = failure.traceback
    succeeded = attempt.status is AttemptStatus.SUCCEEDED
    return {
        "traceId": trace_id(attempt.id),
        "spanId": span_id(attempt.id, ""),
        "name": replaced(f"attempt {rollout.task.id}"),
        "kind": _INTERNAL,
        "startTimeUnixNano": str(int(attempt.started_at * _NS_PER_S)),
        "endTimeUnixNano": str(int(ended * _NS_PER_S)),
        "attributes": attributes_of(attributes),
        "status": {
            "code": _STATUS["ok" if succeeded else "error"],
            "message": replaced(failure.message) if failure else "",
        },
    }


def _repeating_usage(spans: Sequence[Span], below: Sequence[str | None]) -> list[bool]:
    """Return for each span whether its usage is unknown, or another span states it too."""
    parents = {span.id: parent for span, parent in zip(spans, below, strict=True)}
    covered: set[str] = set()
    """Spans above one that states usage."""
    states = [_states_usage(span) for span in spans]
    for parent, stated in zip(below, states, strict=True):
        above = parent if stated else None
        while above is not None and above not in covered:
            covered.add(above)
            above = parents.get(above)
    return [
        not stated or (span.id in covered and span.call is None)
        for span, stated in zip(spans, states, strict=True)
    ]


def _states_usage(span: Span) -> bool:
    """Return whether a span states usage; frameworks write 0 if they do not know it."""
    if span.call is not None and span.call.superseded:
        return False
    known = span.call is not None and bool(span.call.prompt_token_ids)
    return known or any(span.attributes.get(name) for name in _USAGE)


def _span(span: Span, *, below: str | None, repeated: bool, content: bool) -> dict[str, Any]:
    derived = _derived(span, content=content)
    added = {name: value for name, value in derived.items() if name not in span.attributes}
    own = span.attributes
    if repeated:
        added = {name: value for name, value in added.items() if name not in _USAGE}
        own = {semconv.AGL_REPEATED + n if n in _USAGE else n: v for n, v in own.items()}
    attributes = {**own, **added, **_fields(span), semconv.AGL_DERIVED: list(added)}
    kind = _INTERNAL
    if span.kind is SpanKind.LLM:
        kind = _CLIENT if span.call is None else _SERVER
    return {
        "traceId": trace_id(span.attempt_id),
        "spanId": span_id(span.attempt_id, span.id),
        "parentSpanId": span_id(span.attempt_id, below or ""),
        "name": replaced(span.name),
        "kind": kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": attributes_of(attributes),
        "status": {"code": _STATUS[span.status], "message": replaced(span.error)},
    }


def _fields(span: Span) -> dict[str, Any]:
    """Return the attributes for `decode`; rollout and attempt are on the resource."""
    fields: dict[str, Any] = {
        semconv.AGL_SPAN: span.id,
        semconv.AGL_KIND: span.kind.value,
        semconv.AGL_SEQUENCE: span.sequence,
        semconv.AGL_PARENT: span.parent_id,
        semconv.AGL_AGENT: span.agent,
        semconv.AGL_AGENT_RUN: span.agent_run_id,
        semconv.AGL_CALL: span.call_id,
        **(_reward(span.reward) if span.reward is not None else {}),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _reward(reward: Reward) -> dict[str, Any]:
    target = reward.target
    return {
        semconv.AGL_REWARD_VALUE: float(reward.value),
        semconv.AGL_REWARD_CHANNEL: reward.channel,
        semconv.AGL_REWARD_SOURCE: reward.source,
        semconv.AGL_REWARD_WHY: reward.why or None,
        semconv.AGL_REWARD_CALL: target.call,
        semconv.AGL_REWARD_CHOICE: target.choice,
        semconv.AGL_REWARD_AGENT: target.agent,
        semconv.AGL_REWARD_AGENT_RUN: target.agent_run,
    }


def _derived(span: Span, *, content: bool) -> dict[str, Any]:
    """Return standard attributes, for readers that do not know agl's attributes."""
    derived: dict[str, Any] = {
        semconv.GEN_AI_OPERATION_NAME: _OPERATIONS.get(span.kind),
        semconv.GEN_AI_AGENT_NAME: span.agent,
        **(_of_call(span.call, content=content) if span.call is not None else {}),
    }
    if span.kind is SpanKind.TOOL:
        derived[semconv.GEN_AI_TOOL_NAME] = span.name
    return {name: value for name, value in derived.items() if value not in (None, "", [])}


def _of_call(call: ModelCall, *, content: bool) -> dict[str, Any]:
    sampling = call.sampling
    sampled = sum(len(choice.token_ids) for choice in call.choices)
    attributes: dict[str, Any] = {
        semconv.GEN_AI_REQUEST_MODEL: call.model,
        semconv.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
        semconv.GEN_AI_REQUEST_TOP_P: sampling.top_p,
        semconv.GEN_AI_REQUEST_MAX_TOKENS: sampling.max_tokens,
        semconv.GEN_AI_REQUEST_SEED: sampling.seed,
        semconv.GEN_AI_REQUEST_CHOICE_COUNT: sampling.n if sampling.n != 1 else None,
        semconv.GEN_AI_REQUEST_STOP_SEQUENCES: list(sampling.stop),
        semconv.GEN_AI_RESPONSE_ID: call.response_id,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [
            choice.finish_reason for choice in call.choices if choice.finish_reason
        ],
        semconv.GEN_AI_USAGE_INPUT_TOKENS: len(call.prompt_token_ids) or None,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: sampled or None,
        semconv.AGL_ALIAS: call.alias,
        "agl.policy": call.policy,
        "agl.policy_version": call.policy_version,
        "agl.tries": call.tries,
        "agl.superseded": call.superseded or None,
        "http.response.status_code": call.status_code,
    }
    if content:
        attributes[semconv.GEN_AI_INPUT_MESSAGES] = _json([_asked(m) for m in call.messages])
        attributes[semconv.GEN_AI_OUTPUT_MESSAGES] = _json(
            [_answer(*each) for each in zip(call.choices, call.parts, strict=True)]
        )
    return attributes


def _asked(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's message in the form of the semantic conventions."""
    role = message.get("role")
    if role == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id")}
        return {"role": role, "parts": [{**part, "response": message.get("content")}]}
    parts: list[dict[str, Any]] = []
    inside = message.get("content")
    if isinstance(inside, list):
        parts += [_part(part) for part in cast("list[Any]", inside)]
    elif inside:
        parts.append({"type": "text", "content": inside})
    parts += _tool_calls(_calls(message.get("tool_calls") or (), message.get("function_call")))
    return {"role": role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, dict) and isinstance(said := part.get("text"), str):  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return {"type": "text", "content": said}
    # Images and audio are large and do not help a reader of traces.
    kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
    return {"type": kind or "unknown"}


def _answer(choice: Choice, said: Sequence[Part]) -> dict[str, Any]:
    parts = [{"type": _PART_TYPES[part.kind], "content": part.text} for part in said]
    parts += [{"type": "text", "content": text} for text in (choice.refusal, choice.audio) if text]
    parts += _tool_calls(_calls(choice.tool_calls, choice.function_call))
    return {"role": "assistant", "parts": parts, "finish_reason": choice.finish_reason or ""}


def _calls(calls: Sequence[Mapping[str, Any]], older: Any) -> Sequence[Mapping[str, Any]]:
    """Return tool calls, including one in the older form, which has no id."""
    return [*calls, {"function": older}] if isinstance(older, dict) else calls


def _tool_calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for call in calls:
        function: Mapping[str, Any] = call.get("function") or {}
        found.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
