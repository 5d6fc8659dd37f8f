"""The spans of an attempt in the order and depth of a tree, with their places in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agl_reading import merge_calls, usage_of

from agl_core import semconv
from agl_core.types import Span, SpanKind
from agl_dashboard._text import excerpt

_NS_PER_S: Final = 1e9
_DEEPEST: Final = 24
"""Levels that are indented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One line of the tree."""

    span: Span
    depth: int
    left: float
    """Begin and width in percent of the attempt."""
    width: float

    @property
    def seconds(self) -> float | None:
        span = self.span
        return (span.end_ns - span.start_ns) / _NS_PER_S if span.end_ns > span.start_ns else None

    @property
    def failed(self) -> bool:
        span = self.span
        return span.status == "error" or bool(span.call is not None and span.call.error)

    @property
    def name(self) -> str:
        span = self.span
        if span.kind is SpanKind.LLM and span.agent:
            alias = span.call.alias if span.call is not None else ""
            return f"{span.agent} ({alias})" if alias else span.agent
        if span.reward is not None:
            return f"{span.reward.channel} {span.reward.value:+.3f}"
        return span.name

    @property
    def said(self) -> str:
        """What the span is about, in one line."""
        span = self.span
        if span.error:
            return excerpt(span.error)
        if span.reward is not None:
            return excerpt(span.reward.why)
        if semconv.AGL_PROMPT_CUT in (span.name, *span.attributes):
            return _cut(span)
        if span.call is not None:
            return _answer(span)
        arguments = span.attributes.get(semconv.GEN_AI_TOOL_ARGUMENTS)
        if arguments is not None:
            return excerpt(str(arguments))
        handoff = span.attributes.get(semconv.AGL_HANDOFF_TO)
        return f"→ {excerpt(str(handoff))}" if handoff else ""


def tree(spans: Iterable[Span]) -> list[TreeLine]:
    """Return the lines of an attempt's tree: parents before children, siblings by time.

    A span whose parent is missing is at the top; of a cycle of parents, the earliest is.
    """
    merged = merge_calls(spans)
    by_id = {span.id: span for span in merged}
    children: dict[str | None, list[Span]] = defaultdict(list)
    for span in merged:
        parent = span.parent_id if span.parent_id in by_id and span.parent_id != span.id else None
        children[parent].append(span)
    for own in children.values():
        own.sort(key=lambda span: (span.start_ns or 1 << 63, span.order))
    begin = min((span.start_ns for span in merged if span.start_ns), default=0)
    end = max((max(span.end_ns, span.start_ns) for span in merged), default=0)
    place = _Place(begin, max(end - begin, 1))
    nodes: list[TreeLine] = []
    seen: set[str] = set()
    starts = [*children[None], *sorted(merged, key=lambda span: span.start_ns)]
    for start in starts:
        stack = [(start, 0)]
        while stack:
            span, depth = stack.pop()
            if span.id in seen:
                continue
            seen.add(span.id)
            nodes.append(place.of(span, depth))
            stack += [(child, depth + 1) for child in reversed(children[span.id])]
    return nodes


@dataclass(frozen=True, slots=True)
class _Place:
    begin: int
    length: int

    def of(self, span: Span, depth: int) -> TreeLine:
        left = 100 * (span.start_ns - self.begin) / self.length if span.start_ns else 0.0
        width = 100 * max(span.end_ns - span.start_ns, 0) / self.length
        left = min(max(left, 0.0), 99.5)
        return TreeLine(
            span=span,
            depth=min(depth, _DEEPEST),
            left=round(left, 2),
            width=round(min(width, 100 - left), 2),
        )


def _answer(span: Span) -> str:
    call = span.call
    if call is None:
        return ""
    if call.superseded:
        return "replaced by a later try"
    if call.error:
        return excerpt(f"{call.status_code} {call.error}")
    prompt, sampled = usage_of(span)
    counted = f"{prompt:,}+{sampled:,} tokens " if prompt or sampled else ""
    first = call.choices[0] if call.choices else None
    if first is None:
        return counted.strip()
    tools = [str(each.get("function", {}).get("name", "?")) for each in first.tool_calls]
    return counted + excerpt(f"→ {', '.join(tools)}" if tools else first.text or first.reasoning)


def _cut(span: Span) -> str:
    facts = span.attributes.get(semconv.AGL_PROMPT_CUT)
    known = facts if isinstance(facts, dict) else span.attributes
    before, after = known.get("tokens_before"), known.get("tokens_after")
    return f"prompt cut from {before} to {after} tokens, {known.get('messages_cut', 0)} messages"


def calls_of(nodes: Sequence[TreeLine]) -> list[Span]:
    """Return the model calls of a tree, in its order."""
    return [node.span for node in nodes if node.span.kind is SpanKind.LLM]
