"""OTLP traces to spans: agl-core's exports exactly, other programs' by gen_ai attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from msgspec.structs import replace

from agl_core import semconv
from agl_core.tracing import reason
from agl_core.types import Reward, RewardTarget, Span, SpanKind, SpanStatus, finite_number
from agl_otlp._values import Malformed, integer, mapping, plain_attributes, sequence

_SPAN_ID: Final = re.compile(r"[0-9a-fA-F]{16}")
_NO_SPAN: Final = "0" * 16
_STATUS: Final[Mapping[Any, SpanStatus]] = {
    0: "unset",
    1: "ok",
    2: "error",
    "STATUS_CODE_UNSET": "unset",
    "STATUS_CODE_OK": "ok",
    "STATUS_CODE_ERROR": "error",
}
_ATTEMPT: Final = "attempt"
"""`agl.kind` of the root span that an export adds for an attempt; it is not decoded."""
_KINDS: Final = {
    "chat": SpanKind.LLM,
    "text_completion": SpanKind.LLM,
    "generate_content": SpanKind.LLM,
    "invoke_agent": SpanKind.AGENT,
    "execute_tool": SpanKind.TOOL,
}
"""Span kind by ``gen_ai.operation.name``."""
_FIELDS: Final = (
    semconv.AGL_ROLLOUT,
    semconv.AGL_ATTEMPT,
    semconv.AGL_SPAN,
    semconv.AGL_PARENT,
    semconv.AGL_KIND,
    semconv.AGL_AGENT,
    semconv.AGL_AGENT_RUN,
    semconv.AGL_CALL,
    semconv.AGL_SEQUENCE,
    semconv.AGL_DERIVED,
    semconv.AGL_REWARD_VALUE,
    semconv.AGL_REWARD_CHANNEL,
    semconv.AGL_REWARD_SOURCE,
    semconv.AGL_REWARD_WHY,
    semconv.AGL_REWARD_CALL,
    semconv.AGL_REWARD_CHOICE,
    semconv.AGL_REWARD_AGENT,
    semconv.AGL_REWARD_AGENT_RUN,
)
"""Attributes that become fields of a span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The attempt and agent in a request's URL or headers; empty if they have none."""

    rollout_id: str = ""
    attempt_id: str = ""
    agent: str = ""


@dataclass(slots=True)
class Decoded:
    """The spans of one request."""

    spans: list[Span] = field(default_factory=list[Span])
    sources: list[int] = field(default_factory=list[int])
    """Number of the OTLP span behind each span: events become separate spans."""
    received: int = 0
    """Number of OTLP spans, including refused ones."""
    refused: list[str] = field(default_factory=list[str])
    """Reasons for refusing spans, one per span."""
    truncated: int = 0
    """Number of reasons of rewards that were cut."""


def decode(request: Any, *, sender: Sender | None = None) -> Decoded:
    """Read an export request in its JSON form, already parsed.

    A span belongs to the attempt in its attributes ``agl.rollout`` and ``agl.attempt``, in those of
    its resource, or in the sender. A span is refused, without the others, if it is malformed,
    belongs to no attempt or contradicts the sender.

    A span whose ``gen_ai.operation.name`` is a model call becomes an LLM span only if ``agl.call``
    identifies the request. Without it the span cannot be joined to tokens and becomes an operation.

    Raises:
        Malformed: the body is not an export request.
    """
    sender = sender or Sender()
    found = Decoded()
    for resource, scope, raw in _raw_spans(request):
        found.received += 1
        try:
            spans = _spans(raw, resource, scope, sender)
        except (Malformed, RecursionError) as error:
            found.refused.append(str(error))
            continue
        found.spans += spans
        found.sources += [found.received - 1] * len(spans)
    _inherit_agents(found, sender)
    _bound_reasons(found)
    return found


def _raw_spans(request: Any) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield every span with the attributes of its resource and the name of its scope."""
    for of_resource in sequence(
        mapping(request, where="request").get("resourceSpans"), where="request"
    ):
        block = mapping(of_resource, where="resourceSpans")
        resource = mapping(block.get("resource") or {}, where="resource")
        attributes = plain_attributes(resource.get("attributes"), where="resource")
        for of_scope in sequence(block.get("scopeSpans"), where="scopeSpans"):
            inner = mapping(of_scope, where="scopeSpans")
            scope = mapping(inner.get("scope") or {}, where="scope").get("name")
            for raw in sequence(inner.get("spans"), where="spans"):
                yield attributes, scope if isinstance(scope, str) else "", raw


def _spans(raw: Any, resource: Mapping[str, Any], scope: str, sender: Sender) -> list[Span]:
    """Return the span and its events; nothing for the root of an export."""
    row = mapping(raw, where="span")
    otel_id = _id(row.get("spanId"), where="span")
    where = f"span {otel_id}"
    given = plain_attributes(row.get("attributes"), where=where)
    if given.get(semconv.AGL_KIND) == _ATTEMPT:
        return []
    own = given.get(semconv.AGL_SPAN)
    status = mapping(row.get("status") or {}, where=f"{where}.status")
    start, end = _time(row, "startTimeUnixNano", where), _time(row, "endTimeUnixNano", where)
    if end < start:
        raise Malformed(f"{where} ends before it starts")
    attributes = _attributes(given, resource, scope, ours=own is not None)
    if links := sequence(row.get("links"), where=where):
        attributes["otel.links"] = links
    span = Span(
        id=_text(given, semconv.AGL_SPAN, where) or f"otel_{otel_id}",
        rollout_id=_whose("rollout", given, resource, sender.rollout_id, where),
        attempt_id=_whose("attempt", given, resource, sender.attempt_id, where),
        kind=_kind(given, where),
        name=_name(row, where),
        parent_id=_parent(row, given, where),
        agent=_agent(given, where, ours=own is not None),
        agent_run_id=_text(given, semconv.AGL_AGENT_RUN, where),
        sequence=_whole(given.get(semconv.AGL_SEQUENCE) or 0, where),
        start_ns=start,
        end_ns=end,
        status=_status(status, where),
        error=str(status.get("message") or ""),
        attributes=attributes,
        call_id=_text(given, semconv.AGL_CALL, where),
        reward=_reward(given, where),
    )
    return [span, *_events(row, span, where)]


def _id(value: Any, *, where: str) -> str:
    if not isinstance(value, str) or _SPAN_ID.fullmatch(value) is None or value == _NO_SPAN:
        raise Malformed(f"{where} has no id of 16 hex digits: {value!r:.100}")
    return value.lower()


def _parent(row: Mapping[str, Any], given: Mapping[str, Any], where: str) -> str | None:
    """Return the parent's id; in an export of agl-core, the root span is not a parent."""
    if semconv.AGL_SPAN in given:
        return _text(given, semconv.AGL_PARENT, where)
    if not row.get("parentSpanId") or row["parentSpanId"] == _NO_SPAN:
        return None
    return f"otel_{_id(row['parentSpanId'], where=f'parent of {where}')}"


def _agent(given: Mapping[str, Any], where: str, *, ours: bool) -> str | None:
    named = _text(given, semconv.AGL_AGENT, where)
    return named if ours else named or _text(given, semconv.GEN_AI_AGENT_NAME, where)


def _time(row: Mapping[str, Any], name: str, where: str) -> int:
    number = _whole(row.get(name) or 0, f"{where}.{name}")
    if number < 0:
        raise Malformed(f"{where}.{name} is before 1970: {number}")
    return number


def _whole(value: Any, where: str) -> int:
    try:
        return integer(value)
    except (TypeError, ValueError) as error:
        raise Malformed(f"{where} is no whole number: {value!r:.100}") from error


def _name(row: Mapping[str, Any], where: str) -> str:
    name = row.get("name")
    if not isinstance(name, str):
        raise Malformed(f"{where} has no name")
    return name


def _text(given: Mapping[str, Any], name: str, where: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Malformed(f"{where}.{name} is no text: {value!r:.100}")
    return value


def _whose(
    what: str, given: Mapping[str, Any], resource: Mapping[str, Any], sent: str, where: str
) -> str:
    name = f"agl.{what}"
    said = _text(given, name, where) or _text(resource, name, where) or ""
    if said and sent and said != sent:
        raise Malformed(f"{where} says {name} {said!r}, but was sent by {sent!r}")
    if not (said or sent):
        raise Malformed(
            f"{where} names no {what}: set the attribute {name} on it or its resource, send the "
            f"header x-agl-{what}, or use an address that names it"
        )
    return said or sent


def _kind(given: Mapping[str, Any], where: str) -> SpanKind:
    named = given.get(semconv.AGL_KIND)
    if named is not None:
        try:
            return SpanKind(named)
        except ValueError as error:
            raise Malformed(f"{where} has the unknown agl.kind {named!r:.100}") from error
    if semconv.AGL_REWARD_VALUE in given:
        return SpanKind.REWARD
    operation = given.get(semconv.GEN_AI_OPERATION_NAME)
    kind = _KINDS.get(operation) if isinstance(operation, str) else None
    if kind is None or (kind is SpanKind.LLM and given.get(semconv.AGL_CALL) is None):
        return SpanKind.OPERATION
    return kind


def _status(status: Mapping[str, Any], where: str) -> SpanStatus:
    code = status.get("code") or 0
    if not isinstance(code, int | str) or code not in _STATUS:
        raise Malformed(f"{where} has the unknown status {code!r:.100}")
    return _STATUS[code]


def _reward(given: Mapping[str, Any], where: str) -> Reward | None:
    if semconv.AGL_REWARD_VALUE not in given:
        if given.get(semconv.AGL_KIND) == SpanKind.REWARD.value:
            raise Malformed(f"{where} is a reward without {semconv.AGL_REWARD_VALUE}")
        return None
    value = finite_number(given[semconv.AGL_REWARD_VALUE])
    if value is None:
        raise Malformed(f"{where} has a reward of {given[semconv.AGL_REWARD_VALUE]!r:.100}")
    choice = given.get(semconv.AGL_REWARD_CHOICE)
    target = RewardTarget(
        call=_text(given, semconv.AGL_REWARD_CALL, where),
        choice=None if choice is None else _whole(choice, where),
        agent=_text(given, semconv.AGL_REWARD_AGENT, where),
        agent_run=_text(given, semconv.AGL_REWARD_AGENT_RUN, where),
    )
    if target.ambiguous:
        raise Malformed(f"{where} has a reward for several targets: {target}")
    return Reward(
        value=value,
        channel=_text(given, semconv.AGL_REWARD_CHANNEL, where) or "main",
        target=target,
        source=_text(given, semconv.AGL_REWARD_SOURCE, where) or "",
        why=_text(given, semconv.AGL_REWARD_WHY, where) or "",
    )


def _attributes(
    given: Mapping[str, Any], resource: Mapping[str, Any], scope: str, *, ours: bool
) -> dict[str, Any]:
    """Return the attributes that are not fields; of other programs also the service and scope."""
    derived = given.get(semconv.AGL_DERIVED)
    added = {*_FIELDS, *(cast("list[Any]", derived) if isinstance(derived, list) else ())}
    attributes = {
        name.removeprefix(semconv.AGL_REPEATED): value
        for name, value in given.items()
        if name not in added
    }
    if not ours:
        service = resource.get("service.name")
        if service is not None:
            attributes.setdefault("service.name", service)
        if scope:
            attributes.setdefault("otel.scope.name", scope)
    return attributes


def _events(row: Mapping[str, Any], span: Span, where: str) -> Iterator[Span]:
    """Yield a span's events, such as exceptions and messages, as message spans."""
    for number, raw in enumerate(sequence(row.get("events"), where=where)):
        event = mapping(raw, where=f"event of {where}")
        at = _time(event, "timeUnixNano", where)
        yield Span(
            id=f"{span.id}_event{number}",
            rollout_id=span.rollout_id,
            attempt_id=span.attempt_id,
            kind=SpanKind.MESSAGE,
            name=_name(event, f"event of {where}"),
            parent_id=span.id,
            agent=span.agent,
            agent_run_id=span.agent_run_id,
            sequence=span.sequence,
            start_ns=at,
            end_ns=at,
            attributes=plain_attributes(event.get("attributes"), where=where),
        )


def _inherit_agents(found: Decoded, sender: Sender) -> None:
    """Set the agent of other programs' spans: the nearest enclosing one, or the sender's."""
    by_id = {(span.attempt_id, span.id): span for span in found.spans}
    for index, span in enumerate(found.spans):
        above, steps = span, 0
        while above.agent is None and above.parent_id is not None and steps <= len(found.spans):
            parent = by_id.get((span.attempt_id, above.parent_id))
            if parent is None:
                break
            above, steps = parent, steps + 1
        agent = above.agent or sender.agent or None
        if span.agent is None and agent is not None and span.id.startswith("otel_"):
            found.spans[index] = replace(span, agent=agent)


def _bound_reasons(found: Decoded) -> None:
    """Cut the reasons in rewards of other programs; those of an export were cut when recorded."""
    for index, span in enumerate(found.spans):
        if span.reward is not None and span.id.startswith("otel_"):
            why, cut = reason(span.reward.why)
            found.spans[index] = replace(span, reward=replace(span.reward, why=why))
            found.truncated += cut
