"""Table of the open LangChain runs of one attempt: the parent, span and agent of each.

Parents come from ``parent_run_id``. The current context is used only if LangChain gives no parent,
and for scopes that the user opened inside a run. All handlers of an attempt share one table, so a
run that reaches two of them is recorded once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config

from agl_core import semconv
from agl_core.tracing import (
    Recorder,
    SpanScope,
    SpanStart,
    Tables,
    Tracer,
    handoff,
    scope_around,
    tool_attributes,
)
from agl_core.types import Scope, SpanKind
from agl_langchain._agents import NO_NAMES, Introduction, Names, introduced
from agl_langchain._tools import Unreached

FRAMEWORK: Final = "langchain"


def control_flow() -> tuple[type[BaseException], ...]:
    """Return the exceptions that do not mean failure: LangGraph's interrupts and parent commands.

    They are recognized by class, not by name.
    """
    # Not imported: LangChain works without LangGraph, and code that raises them has imported it.
    bubble_up = getattr(sys.modules.get("langgraph.errors"), "GraphBubbleUp", None)
    return () if bubble_up is None else (bubble_up,)


TRACER: Final = Tracer(FRAMEWORK, control_flow=control_flow)


@dataclass(slots=True)  # a frozen one takes five times as long to construct
class Start:
    """The arguments of a start callback of any kind."""

    run_id: UUID
    parent_run_id: UUID | None
    name: str
    metadata: Mapping[str, Any] | None
    attributes: dict[str, Any]


@dataclass(eq=False, slots=True)
class Run:
    """An open run."""

    run_id: UUID
    span: SpanScope
    names: Names
    in_named_agent: bool
    parent: Run | None
    speaker: Run | None
    """The run with which the current agent began; None if no run of this table began it."""
    agent_shown: bool = False
    """Whether this run's span is recorded as an agent, if an agent began with it."""
    outer_call: Run | None = None
    """For a model call: the open call around it without a request, perhaps a wrapper model."""
    wraps_call: bool = False


@dataclass(slots=True)
class _Place:
    """The parent, scope and agent of a new run."""

    parent: Run | None
    around: Scope | None
    names: Names
    introduction: Introduction | None
    speaker: Run | None
    """The run with which the agent around began; None if the user's scope names another agent."""
    in_named_agent: bool

    def start(self, kind: SpanKind, start: Start) -> SpanStart:
        """Return how to open the span and scope of the run."""
        introduction, around = self.introduction, self.around
        begun = SpanStart(kind, start.name, attributes=start.attributes)
        if introduction is None:
            begun.scope = None if kind is SpanKind.LLM else "operation"
            agent = around.agent if around is not None else None
            run_id = around.agent_run_id if around is not None else None
        else:
            begun.scope = None if kind is SpanKind.LLM else "agent"
            begun.trainable = not introduction.owned
            agent, run_id = introduction.agent, str(start.run_id)
            begun.speaker, begun.speaker_run_id = agent, run_id
        if kind is SpanKind.LLM or self.speaker_shown:
            begun.agent, begun.agent_run_id = agent, run_id
        return begun

    @property
    def speaker_shown(self) -> bool:
        """Whether the current agent is already recorded as an agent."""
        if self.introduction is not None:
            return not self.introduction.by_node
        return self.speaker is None or self.speaker.agent_shown


class RunTable:
    """The open runs of one attempt. Thread-safe: only one thread changes each run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._runs: dict[UUID, Run] = {}
        self._calls: dict[str, Run] = {}
        """Open model calls by span id."""
        self.asked: dict[str, Any] = {}
        """Arguments of the tool calls that models requested and no tool has taken, by call id."""

    def __contains__(self, run_id: UUID) -> bool:
        return run_id in self._runs

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Return the innermost scope, given the innermost one that was opened through agl-core."""
        if opened is not None and opened.span_id in self._calls:
            return opened
        return _innermost(self._current(), opened)

    def sender(self) -> Scope | None:
        """Return the scope that sends the next request; None if it is not of this table.

        A graph node that sends a request becomes an agent.
        """
        opened = scope_around(FRAMEWORK)
        scope = self(opened)
        if scope is opened:
            return scope if scope is not None and scope.span_id in self._calls else None
        if run := self._current():
            self._show_agent(run.speaker)
        return scope

    def open_chain(self, start: Start) -> Run:
        place = self._place(start)
        shown = place.introduction is not None and not place.introduction.by_node
        begun = place.start(SpanKind.AGENT if shown else SpanKind.OPERATION, start)
        if place.introduction is not None and shown:
            begun.name = place.introduction.agent
        return self._enter(start, place, begun, agent_shown=shown)

    def open_tool(self, start: Start) -> Run:
        place = self._place(start)
        begun = SpanStart(SpanKind.TOOL, start.name, attributes=start.attributes)
        if place.around is not None and place.speaker_shown:
            begun.agent, begun.agent_run_id = place.around.agent, place.around.agent_run_id
        run = self._enter(start, place, begun)
        run.in_named_agent, run.speaker = False, None
        self.asked.pop(start.attributes.get(semconv.GEN_AI_TOOL_CALL_ID, ""), None)
        return run

    def open_call(self, start: Start) -> Run:
        """Open a model call and make its scope current for the request."""
        opened = scope_around(FRAMEWORK)
        outer = self._calls.get(opened.span_id) if opened is not None else None
        if outer is not None and outer.span.call_id is not None:
            outer = None
        place = self._place(start)
        run = self._enter(start, place, place.start(SpanKind.LLM, start), agent_shown=True)
        if outer is not None:
            run.span.parent = outer.span
        run.span.activate()
        run.outer_call = outer
        self._calls[run.span.span_id] = run
        self._show_agent(run.speaker)
        return run

    def hand_over(self, run_id: UUID, target: str) -> None:
        """Record that the tool of this run hands over to another agent."""
        run = self._runs.get(run_id)
        speaker = run.span.parent if run is not None else None
        if speaker is not None and speaker.agent is not None:
            start = handoff(speaker.agent, target)
            TRACER.open(self._recorder, start, parent=speaker).end()

    def record_unreached(self, run_id: UUID, calls: Iterable[Unreached]) -> None:
        """Record failed tool calls that reached no tool, with this run as the parent."""
        run = self._runs.get(run_id)
        if run is None:
            return
        around = run.span.parent if run.span.kind == "call" else run.span
        for call in calls:
            start = SpanStart(
                SpanKind.TOOL,
                call.name,
                agent=around.agent if around is not None else None,
                agent_run_id=around.agent_run_id if around is not None else None,
                attributes=tool_attributes(call.name, call.arguments, call_id=call.call_id),
            )
            TRACER.open(self._recorder, start, parent=around).end(failed=call.error)

    def answering(self, run_id: UUID) -> None:
        """Close the call's scope at its first token: later requests do not belong to the call."""
        run = self._runs.get(run_id)
        if run is not None:
            run.span.close()

    def close(
        self,
        run_id: UUID,
        *,
        error: BaseException | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        if error is not None:
            # LangChain reports no end of inner runs that were cancelled, or that a callback's
            # exception ended.
            for inside in [each for each in self._runs.values() if each.parent is run]:
                self.close(inside.run_id, error=error)
        if self._calls.pop(run.span.span_id, None) is not None:
            self._close_call(run)
        run.span.end(error, attributes=attributes)

    def _close_call(self, run: Run) -> None:
        sent = run.span.call_id is not None
        if run.outer_call is not None and (sent or run.wraps_call):
            run.outer_call.wraps_call = True
        if run.wraps_call and not sent:
            # A model class that only wraps another one: the inner run is the call.
            self._recorder.update(run.span.span_id, kind=SpanKind.OPERATION)

    def _current(self) -> Run | None:
        """Return the run whose code is running, from LangChain's context variable."""
        config = var_child_runnable_config.get()
        run_id: UUID | None = getattr((config or {}).get("callbacks"), "parent_run_id", None)
        return self._runs.get(run_id) if run_id is not None else None

    def _place(self, start: Start) -> _Place:
        named = self._runs.get(start.parent_run_id) if start.parent_run_id else None
        parent = named or self._current()
        opened = scope_around(FRAMEWORK)
        while opened is not None and opened.span_id in self._calls:
            opened = opened.parent
        around = _innermost(parent, opened)
        # Not inherited if the user opened a scope between the parent run and this one.
        speaker, in_named_agent = None, False
        if parent is not None and parent.span is around:
            speaker, in_named_agent = parent.speaker, parent.in_named_agent
        names = Names.of(start.metadata)
        introduction = introduced(
            start.name,
            names,
            NO_NAMES if named is None else named.names,
            in_named_agent=in_named_agent,
            suspended=around is None or around.agent is None,
        )
        if introduction is not None:
            in_named_agent = not introduction.by_node
        return _Place(parent, around, names, introduction, speaker, in_named_agent)

    def _enter(
        self, start: Start, place: _Place, begun: SpanStart, *, agent_shown: bool = False
    ) -> Run:
        run = Run(
            start.run_id,
            TRACER.open(self._recorder, begun, parent=place.around),
            place.names,
            in_named_agent=place.in_named_agent,
            parent=place.parent,
            speaker=place.speaker,
            agent_shown=agent_shown,
        )
        if place.introduction is not None:
            run.speaker = run
        self._runs[start.run_id] = run
        return run

    def _show_agent(self, speaker: Run | None) -> None:
        """Record the span of a graph node as an agent, because it makes a model call."""
        if speaker is None or speaker.agent_shown:
            return
        speaker.agent_shown = True
        self._recorder.update(
            speaker.span.span_id,
            kind=SpanKind.AGENT,
            name=speaker.span.agent,
            agent=speaker.span.agent,
            agent_run_id=speaker.span.agent_run_id,
        )


def _innermost(run: Run | None, opened: Scope | None) -> Scope | None:
    """Return the inner one of a run's span and the scope opened through agl-core."""
    if run is None:
        return opened
    scope = opened
    while scope is not None:
        if scope is run.span:
            return opened
        scope = scope.parent
    return run.span


TABLES: Final = Tables(FRAMEWORK, RunTable)
