"""The open runs of one attempt: where each stands, and who speaks in it.

Parents come from ``parent_run_id``. The surrounding context is asked only where LangChain names no
parent, and for scopes that the user opened inside a run. One table serves all handlers of an
attempt, so a run that reaches two of them is recorded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config

from agl_core import semconv
from agl_core.tracing import Recorder, Tables, close_scope, make_current, scope_around, scope_in
from agl_core.types import Scope, ScopeKind, SpanKind
from agl_langchain._agents import NO_NAMES, Introduction, Names, introduced
from agl_langchain._run import FRAMEWORK, Run, Start, control_flow
from agl_langchain._tools import Unreached

_HANDOFF: Final = "handoff"
"""Name of a message span that says who lets whom go on."""


@dataclass(slots=True)
class _Place:
    """Where a new run stands, and what that makes of it."""

    parent: Run | None
    around: Scope | None
    names: Names
    introduction: Introduction | None
    speaker: Run | None
    """The run with which whoever speaks around began, unless a scope of the user's names another."""
    in_named_agent: bool

    @property
    def speaker_shown(self) -> bool:
        """Whether who speaks here counts as an agent yet."""
        if self.introduction is not None:
            return not self.introduction.by_node
        return self.speaker is None or self.speaker.agent_shown


class RunTable:
    """The open runs of one attempt. Safe to use from several threads: each run has one owner."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._runs: dict[UUID, Run] = {}
        self._calls: dict[str, Run] = {}
        """Open model calls by span id."""
        self.asked: dict[str, Any] = {}
        """Arguments of the calls that models asked for and no tool has taken, by id."""

    def __contains__(self, run_id: UUID) -> bool:
        return run_id in self._runs

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Innermost scope here, given the innermost that was opened through agl-core."""
        if opened is not None and opened.span_id in self._calls:
            return opened
        return _innermost(self._current(), opened)

    def sender(self) -> Scope | None:
        """Who sends the request that is about to leave; None where that is no run of this table.

        A graph node that sends is an agent.
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
        kind = SpanKind.AGENT if shown else SpanKind.OPERATION
        scope = self._scope("operation" if place.introduction is None else "agent", place, start)
        if place.introduction is not None and shown:
            start = Start(
                start.run_id, start.parent_run_id, place.introduction.agent, start.metadata
            )
        self._start_span(kind, place, scope, start)
        return self._enter(start, place, scope, agent_shown=shown)

    def open_tool(self, start: Start) -> Run:
        place = self._place(start)
        scope = Scope(kind="tool", span_id="", parent=place.around)
        self._start_span(SpanKind.TOOL, place, scope, start)
        run = self._enter(start, place, scope)
        run.in_named_agent, run.speaker = False, None
        self.asked.pop(start.attributes.get(semconv.GEN_AI_TOOL_CALL_ID, ""), None)
        return run

    def open_call(self, start: Start) -> Run:
        """Open a model call: its scope becomes current where the request will be sent."""
        opened = scope_around(FRAMEWORK)
        outer = self._calls.get(opened.span_id) if opened is not None else None
        if outer is not None and outer.scope.call_id is not None:
            outer = None
        place = self._place(start)
        scope = self._scope("call", place, start)
        self._start_span(SpanKind.LLM, place, scope, start)
        if outer is not None:
            scope.parent = outer.scope
        make_current(scope)
        run = self._enter(start, place, scope, agent_shown=True)
        run.outer_call = outer
        self._calls[scope.span_id] = run
        self._show_agent(run.speaker)
        return run

    def hand_over(self, run_id: UUID, target: str) -> None:
        """The tool of this run lets another agent go on."""
        run = self._runs.get(run_id)
        speaker = run.scope.parent if run is not None else None
        if speaker is None or speaker.agent is None:
            return
        span_id = self._recorder.start(
            SpanKind.MESSAGE,
            _HANDOFF,
            parent_id=speaker.span_id,
            attributes={
                semconv.AGL_FRAMEWORK: FRAMEWORK,
                semconv.AGL_HANDOFF_FROM: speaker.agent,
                semconv.AGL_HANDOFF_TO: target,
            },
        )
        self._recorder.end(span_id)

    def record_unreached(self, run_id: UUID, calls: Iterable[Unreached]) -> None:
        """Record calls that this run tells of."""
        run = self._runs.get(run_id)
        if run is None:
            return
        around = run.scope.parent if run.scope.kind == "call" else run.scope
        for call in calls:
            span_id = self._recorder.start(
                SpanKind.TOOL,
                call.name,
                parent_id=around.span_id if around is not None else "",
                agent=around.agent if around is not None else None,
                agent_run_id=around.agent_run_id if around is not None else None,
                attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **call.attributes},
            )
            self._recorder.end(span_id, status="error", error=call.error)

    def answering(self, run_id: UUID) -> None:
        """The first token came: whatever is sent here from now on is not this call."""
        run = self._runs.get(run_id)
        if run is not None and not run.scope.closed:
            close_scope(run.scope)

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
            # Of what is cancelled inside, or left by a callback's exception, no end is told.
            for inside in [each for each in self._runs.values() if each.parent is run]:
                self.close(inside.run_id, error=error)
        if self._calls.pop(run.scope.span_id, None) is not None:
            self._close_call(run)
        run.scope.closed = True
        control = () if error is None else control_flow()
        self._recorder.end_with(
            run.scope.span_id, error, control_flow=control, attributes=attributes
        )

    def _close_call(self, run: Run) -> None:
        close_scope(run.scope)
        sent = run.scope.call_id is not None
        if run.outer_call is not None and (sent or run.wraps_call):
            run.outer_call.wraps_call = True
        if run.wraps_call and not sent:
            # A model class that only hands on to another one: the inner run is the call.
            self._recorder.update(run.scope.span_id, kind=SpanKind.OPERATION)

    def _current(self) -> Run | None:
        """The run whose code this is, as LangChain's own context variable says."""
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
        # Unless a scope of the user's stands between the parent run and what is inside.
        speaker, in_named_agent = None, False
        if parent is not None and parent.scope is around:
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

    def _scope(self, kind: ScopeKind, place: _Place, start: Start) -> Scope:
        introduction = place.introduction
        if introduction is None:
            return scope_in(place.around, kind, "")
        run_id, owned = str(start.run_id), introduction.owned
        return scope_in(place.around, kind, "", introduction.agent, run_id, not owned)

    def _start_span(self, kind: SpanKind, place: _Place, scope: Scope, start: Start) -> None:
        around = place.around
        speaks = around if kind is SpanKind.TOOL else scope
        if kind is not SpanKind.LLM and not place.speaker_shown:
            speaks = None
        scope.span_id = self._recorder.start(
            kind,
            start.name,
            # An empty id hangs the span under the attempt, whatever scope is open here.
            parent_id=around.span_id if around is not None else "",
            agent=speaks.agent if speaks is not None else None,
            agent_run_id=speaks.agent_run_id if speaks is not None else None,
            attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **start.attributes},
        )

    def _enter(
        self, start: Start, place: _Place, scope: Scope, *, agent_shown: bool = False
    ) -> Run:
        run = Run(
            self,
            start.run_id,
            scope,
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
        """Turn the span of a graph node into an agent's, now that a model speaks in it."""
        if speaker is None or speaker.agent_shown:
            return
        speaker.agent_shown = True
        self._recorder.update(
            speaker.scope.span_id,
            kind=SpanKind.AGENT,
            name=speaker.scope.agent,
            agent=speaker.scope.agent,
            agent_run_id=speaker.scope.agent_run_id,
        )


def _innermost(run: Run | None, opened: Scope | None) -> Scope | None:
    """The inner of a run and of the scope that was opened through agl-core in this context."""
    if run is None:
        return opened
    scope = opened
    while scope is not None:
        if scope is run.scope:
            return opened
        scope = scope.parent
    return run.scope


TABLES: Final = Tables(FRAMEWORK, RunTable)
