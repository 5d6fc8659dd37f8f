from __future__ import annotations

import asyncio
import contextvars
import logging
import threading

import pytest

from agl_core.errors import ConfigError
from agl_core.tracing import active, current, current_scope, enter, origins_of, resource
from agl_core.types import PromptTemplate, Resources, SpanKind
from tests.core.tracing.scopes import close_scope, open_scope


def test_outside_a_rollout_there_is_no_context_and_the_error_names_the_fix():
    assert active() is None
    with pytest.raises(ConfigError, match="copy_context"):
        current()
    with pytest.raises(ConfigError):
        resource("prompt")


def test_entering_sets_and_restores_attempt_and_scope(make_context):
    outer, inner = make_context("a"), make_context("b")
    with enter(outer):
        scope = open_scope("agent", agent="writer", span_id="s")
        with enter(inner):
            assert current() is inner
            assert current_scope() is None
        assert current() is outer
        assert current_scope() is scope
    assert active() is None
    assert current_scope() is None


def test_a_resource_is_found_by_name_or_the_names_are_listed(make_context):
    context = make_context()
    context.resources = Resources(version=3, items={"writer": PromptTemplate(template="x")})
    with enter(context):
        assert resource("writer") == PromptTemplate(template="x")
        with pytest.raises(ConfigError, match=r"version 3 has no 'planner'; it has \['writer'\]"):
            resource("planner")


def test_scopes_inherit_the_agent_except_through_a_tool(make_context):
    with enter(make_context()):
        agent = open_scope("agent", agent="writer", span_id="a", trainable=False)
        assert agent.agent_run_id == "a"
        call = open_scope("call", span_id="c")
        assert (call.agent, call.agent_run_id, call.trainable) == ("writer", "a", False)
        close_scope(call)
        tool = open_scope("tool", span_id="t")
        assert (tool.agent, tool.agent_run_id, tool.trainable) == (None, None, True)
        inner = open_scope("agent", agent="judge", span_id="j")
        assert (inner.agent, inner.agent_run_id) == ("judge", "j")
        close_scope(inner)
        close_scope(tool)
        assert current_scope() is agent


def test_a_nested_scope_of_the_same_agent_continues_its_run():
    outer = open_scope("agent", agent="writer", span_id="a")
    inner = open_scope("agent", agent="writer", span_id="b")
    assert inner.agent_run_id == "a"
    close_scope(outer)
    assert current_scope() is None


def test_an_explicit_parent_wins_over_the_current_scope():
    other = open_scope("agent", agent="x", span_id="x")
    alone = open_scope("agent", agent="y", span_id="y", parent=None)
    assert alone.parent is None
    close_scope(alone)
    close_scope(other)


def test_closing_an_outer_scope_leaves_what_lies_inside_it():
    outer = open_scope("agent", agent="writer", span_id="a")
    open_scope("call", span_id="c")
    close_scope(outer)
    assert current_scope() is None


async def test_a_scope_closed_in_another_task_is_current_nowhere(caplog):
    scope = open_scope("call", span_id="c")

    async def end_elsewhere():
        close_scope(scope)

    with caplog.at_level(logging.DEBUG):
        await asyncio.create_task(end_elsewhere())
    assert current_scope() is None
    assert not caplog.records


def test_a_scope_closed_in_a_fresh_thread_is_current_nowhere():
    outer = open_scope("agent", agent="writer", span_id="a")
    scope = open_scope("call", span_id="c")
    thread = threading.Thread(target=close_scope, args=(scope,))
    thread.start()
    thread.join()
    assert current_scope() is outer
    close_scope(outer)


async def test_starts_and_ends_in_different_tasks_build_one_tree(make_context):
    context = make_context()
    recorder = context.recorder
    spans: dict[str, str] = {}

    async def start(name, parent, kind):
        spans[name] = recorder.start(kind, name, parent_id=spans.get(parent))
        open_scope("operation", span_id=spans[name])

    async def end(name):
        recorder.end(spans[name])

    with enter(context):
        for name, parent, kind in (
            ("G", "", SpanKind.OPERATION),
            ("N", "G", SpanKind.OPERATION),
            ("C", "N", SpanKind.LLM),
        ):
            await asyncio.create_task(start(name, parent, kind))
        await asyncio.create_task(end("C"))
        copied = contextvars.copy_context()
        spans["T"] = await asyncio.get_running_loop().run_in_executor(
            None, lambda: copied.run(recorder.start, SpanKind.TOOL, "T", parent_id=spans["N"])
        )
        for name in ("T", "N", "G"):
            await asyncio.create_task(end(name))
    names = {span.id: span.name for span in recorder.snapshot()}
    tree = [(span.name, names.get(span.parent_id or "")) for span in recorder.drain()]
    assert tree == [("G", None), ("N", "G"), ("C", "N"), ("T", "N")]


def test_origins_name_every_loopback_spelling_and_the_default_port():
    assert origins_of("http://127.0.0.1:81/v1") == origins_of("http://localhost:81")
    assert "[::1]:81" in origins_of("http://localhost:81")
    assert origins_of("https://gateway.example/v1") == frozenset({"gateway.example:443"})
    with pytest.raises(ConfigError, match="names no host"):
        origins_of("gateway")
