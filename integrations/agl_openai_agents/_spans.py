"""The SDK's spans of one attempt: what each was recorded as, and who speaks in it."""

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
    """One of the SDK's spans, from its start to its end."""

    span: SpanScope
    kind: SpanKind
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
        """The attempt has a record of what cannot be seen."""

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._scopes

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Innermost scope here, given the innermost that was opened through agl-core."""
        span = get_current_span()
        return self._innermost(span.span_id if span is not None else None, opened)

    def start(self, span: Span[Any]) -> None:
        """Record a span that begins, unless it only groups others."""
        around = self._innermost(span.parent_id, scope_around(FRAMEWORK))
        start = start_of(span.span_data)
        if start is None or start.kind is None:
            self._scopes[span.span_id] = around
            return
        if start.agent is None:
            inherits = start.kind is SpanKind.TOOL or start.scope != "tool"
            speaks = around if inherits else None
            # Empty where no agent speaks around: the span of a guardrail names one at its end.
            start.agent = (speaks.agent if speaks is not None else None) or ""
            start.agent_run_id = speaks.agent_run_id if speaks is not None else None
        opened = TRACER.open(self._recorder, start, parent=around)
        self._scopes[span.span_id] = opened
        self._open[span.span_id] = OpenSpan(opened, start.kind, sys.exc_info()[1])

    def end(self, span: Span[Any]) -> None:
        """Record the end of a span; the exception that leaves it is the one being handled here."""
        opened = self._open.pop(span.span_id, None)
        if opened is None:
            return
        recorded = opened.span
        raised = sys.exc_info()[1]
        attributes = results_of(span.span_data)
        around = recorded.parent
        if recorded.kind == "tool" and around is not None:
            # Only now: what ran inside would have been taken for the agent's own.
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


def _exact(raised: BaseException, kind: SpanKind) -> BaseException:
    """The tool's own exception, which the SDK raises as the cause of one of its own."""
    if kind is SpanKind.TOOL and isinstance(raised, UserError):
        return raised.__cause__ or raised
    return raised


def _error_text(error: SpanError | None) -> str:
    """What the SDK says of a failure that it handled, in one line."""
    if error is None:
        return ""
    detail = (error.get("data") or {}).get("error")
    return f"{error['message']}: {detail}" if detail else error["message"]
