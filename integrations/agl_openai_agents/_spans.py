"""Table of the SDK's spans of one attempt: the recorded span and the scope of each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

from agents.exceptions import UserError
from agents.tracing import Span, SpanError, get_current_span

from agl_core.tracing import Recorder, SpanScope, Tables, scope_around
from agl_core.types import Scope, SpanKind
from agl_openai_agents._shapes import FRAMEWORK, TRACER, results_of, start_of


@dataclass(eq=False, slots=True)
class OpenSpan:
    """A span of the SDK that has not ended."""

    span: SpanScope
    kind: SpanKind
    handled: BaseException | None
    """Exception that was being handled when the span began: not an error of the span."""


class SpanTable:
    """All SDK spans of one attempt; as the attempt's locator it finds the innermost scope.

    All processors of an attempt share one table, so a span that reaches two is recorded once.
    Each span begins and ends in one task; several tasks and threads may use the table in parallel.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._scopes: dict[str, Scope | None] = {}
        """By the SDK's span id. Ended spans stay: they may be current in another context."""
        self._open: dict[str, OpenSpan] = {}
        self.warned = False
        """Whether the attempt has a record that spans are missing."""

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._scopes

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Return the innermost scope, given the innermost one that was opened through agl-core."""
        span = get_current_span()
        return self._innermost(span.span_id if span is not None else None, opened)

    def start(self, span: Span[Any]) -> None:
        """Record the start of a span, unless it only groups others."""
        around = self._innermost(span.parent_id, scope_around(FRAMEWORK))
        start = start_of(span.span_data)
        if start is None or start.kind is None:
            self._scopes[span.span_id] = around
            return
        if start.agent is None:
            inherits = start.kind is SpanKind.TOOL or start.scope != "tool"
            speaks = around if inherits else None
            # Empty if no agent is around: `end` sets the agent of a guardrail's span.
            start.agent = (speaks.agent if speaks is not None else None) or ""
            start.agent_run_id = speaks.agent_run_id if speaks is not None else None
        opened = TRACER.open(self._recorder, start, parent=around)
        self._scopes[span.span_id] = opened
        self._open[span.span_id] = OpenSpan(opened, start.kind, sys.exc_info()[1])

    def end(self, span: Span[Any]) -> None:
        """Record the end of a span; the exception being handled is the span's error."""
        opened = self._open.pop(span.span_id, None)
        if opened is None:
            return
        recorded = opened.span
        raised = sys.exc_info()[1]
        attributes = results_of(span.span_data)
        around = recorded.parent
        if recorded.kind == "tool" and around is not None:
            # Set at the end: otherwise calls inside the span would count as the agent's.
            self._recorder.update(
                recorded.span_id, agent=around.agent, agent_run_id=around.agent_run_id
            )
        if raised is opened.handled or isinstance(raised, GeneratorExit):
            raised = None
        if raised is not None:
            recorded.end(_exact(raised, opened.kind), attributes=attributes)
        else:
            recorded.end(failed=_error_text(span.error), attributes=attributes)

    def _innermost(self, span_id: str | None, opened: Scope | None) -> Scope | None:
        """Return the inner one of a span's scope and the scope opened through agl-core."""
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


def _exact(raised: BaseException, kind: SpanKind) -> BaseException:
    """Return the tool's exception: the SDK raises a `UserError` with it as the cause."""
    if kind is SpanKind.TOOL and isinstance(raised, UserError):
        return raised.__cause__ or raised
    return raised


def _error_text(error: SpanError | None) -> str | None:
    """Return the SDK's message about a failure that it handled, in one line."""
    if error is None:
        return None
    detail = (error.get("data") or {}).get("error")
    return f"{error['message']}: {detail}" if detail else error["message"]
