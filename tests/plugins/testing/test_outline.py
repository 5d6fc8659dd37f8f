"""Spans as the lines that golden files hold."""

from __future__ import annotations

from agl_testing.scenario import outline

from agl_core.types import Span, SpanKind


def span(name, kind, parent=None, *, agent=None):
    return Span(
        id=name,
        rollout_id="r",
        attempt_id="a",
        kind=kind,
        name=name,
        parent_id=parent,
        agent=agent,
    )


SPANS = [
    span("team", SpanKind.OPERATION),
    span("turn", SpanKind.AGENT, "team", agent="planner"),
    span("chat", SpanKind.LLM, "turn", agent="planner"),
    span("lookup", SpanKind.TOOL, "turn", agent="planner"),
    span("other", SpanKind.LLM, "lookup"),
    span("main", SpanKind.REWARD),
]


def test_each_span_is_a_line_as_deep_as_it_lies_with_who_speaks():
    assert outline(SPANS) == [
        "operation team",
        ". agent planner",
        ". . llm planner",
        ". . tool lookup",
        ". . . llm -",
        "reward main",
    ]


def test_spans_that_are_left_out_leave_no_indent():
    assert outline(SPANS, {"agent", "llm"}) == ["agent planner", ". llm planner", ". llm -"]


def test_a_span_whose_parent_is_unknown_begins_at_the_left():
    assert outline([span("chat", SpanKind.LLM, "elsewhere", agent="writer")]) == ["llm writer"]


def test_the_order_is_that_of_the_spans_and_the_line_may_be_anybodys():
    assert outline(SPANS[::-1], show=lambda each: each.id.upper()) == [
        "MAIN",
        ". . . OTHER",
        ". . LOOKUP",
        ". . CHAT",
        ". TURN",
        "TEAM",
    ]
