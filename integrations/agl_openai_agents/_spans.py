"""The SDK's spans of one attempt: what each was recorded as, and who speaks in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

from agents.exceptions import UserError
from agents.tracing import Span, SpanError, get_current_span

from agl_core import semconv
from agl_core.tracing import Recorder, Tables, scope_around
from agl_core.types import Scope, SpanKind
from agl_core.types.ids import new_id
from agl_openai_agents._shapes import FRAMEWORK, Shape, results_of, shape_of


@dataclass(eq=False, slots=True)
class OpenSpan:
    """One of the SDK's spans, from its start to its end."""

    scope: Scope
    shape: Shape
    handled: BaseException | None
    """Was being handled when the span began, so the span did not fail with it."""


class SpanTable:
    """Every span of one attempt; the attempt's locator, asked for the innermost scope.

    One table serves all processors of an attempt, so a span that reaches two is recorded once.
    Each span begins and ends in one task; different tasks and threads use the table at once.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._scopes: dict[str, Scope | None] = {}
        """By the SDK's span id. Ended ones stay: in another context they may still be current."""
        self._open: dict[str, OpenSpan] = {}
        self.warned = False
        """The attempt was told of what cannot be seen."""

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._scopes

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Innermost scope here, given the innermost that was opened through agl-core."""
        span = get_current_span()
        return self._innermost(span.span_id if span is not None else None, opened)

    def start(self, span: Span[Any]) -> None:
        """Record a span that begins, unless it only groups others."""
        around = self._innermost(span.parent_id, scope_around(FRAMEWORK))
        shape = shape_of(span.span_data)
        if shape is None:
            self._scopes[span.span_id] = around
            return
        scope = _scope(shape, around)
        # Before it is recorded: who speaks does not depend on where that is kept.
        self._scopes[span.span_id] = scope
        speaks = around if shape.kind is SpanKind.TOOL else scope
        self._recorder.start(
            shape.kind,
            shape.name,
            span_id=scope.span_id,
            # Empty ones say: under the attempt itself, and nobody's.
            parent_id=around.span_id if around is not None else "",
            agent=(speaks.agent if speaks is not None else None) or "",
            agent_run_id=speaks.agent_run_id if speaks is not None else None,
            attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **shape.attributes},
        )
        self._open[span.span_id] = OpenSpan(scope, shape, sys.exc_info()[1])

    def end(self, span: Span[Any]) -> None:
        """Record the end of a span; the exception that leaves it is the one being handled here."""
        opened = self._open.pop(span.span_id, None)
        if opened is None:
            return
        scope = opened.scope
        scope.closed = True
        raised = sys.exc_info()[1]
        attributes = results_of(span.span_data)
        if opened.shape.scope == "tool" and scope.parent is not None:
            # Only now: what ran inside would have been taken for the agent's own.
            self._recorder.update(
                scope.span_id, agent=scope.parent.agent, agent_run_id=scope.parent.agent_run_id
            )
        if raised is opened.handled or isinstance(raised, GeneratorExit):
            raised = None
        if raised is not None:
            exact = _exact(raised, opened.shape)
            self._recorder.end_with(scope.span_id, exact, attributes=attributes)
            return
        error = _error_text(span.error)
        self._recorder.end(
            scope.span_id,
            status="error" if error else "ok",
            error=error,
            attributes=attributes,
        )

    def _innermost(self, span_id: str | None, opened: Scope | None) -> Scope | None:
        """The inner of a span's scope and of the scope that was opened through agl-core."""
        scope = self._scopes.get(span_id) if span_id is not None else None
        while scope is not None and scope.closed:
            scope = scope.parent
        if scope is None:
            return opened
        outer = opened
        while outer is not None:
            if outer is scope:
                return opened
            outer = outer.parent
        return scope


TABLES: Final = Tables(FRAMEWORK, SpanTable)


def _scope(shape: Shape, around: Scope | None) -> Scope:
    scope = Scope(kind=shape.scope, span_id=new_id("span"), parent=around)
    if around is not None and shape.scope != "tool":
        scope.agent, scope.agent_run_id = around.agent, around.agent_run_id
        scope.trainable = around.trainable
    if shape.agent is not None:
        scope.agent, scope.agent_run_id = shape.agent, scope.span_id
    return scope


def _exact(raised: BaseException, shape: Shape) -> BaseException:
    """The tool's own exception, which the SDK raises as the cause of one of its own."""
    if shape.kind is SpanKind.TOOL and isinstance(raised, UserError):
        return raised.__cause__ or raised
    return raised


def _error_text(error: SpanError | None) -> str:
    """What the SDK says of a failure that it handled, in one line."""
    if error is None:
        return ""
    detail = (error.get("data") or {}).get("error")
    return f"{error['message']}: {detail}" if detail else error["message"]
