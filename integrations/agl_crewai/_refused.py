"""Tool calls that reach no tool: nothing begins with them, so they are no frames."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from agl_core import semconv
from agl_core.tracing import AttemptContext, current_scope
from agl_crewai._events import Closing, Opening
from agl_crewai._names import FRAMEWORK

_REPORTED: ContextVar[Any] = ContextVar("agl_crewai_reported", default=None)
"""The failure that what ended last here has reported."""


def note(ended: Closing) -> None:
    """Remember what the end of a tool has told: CrewAI tells it again."""
    _REPORTED.set(ended.failure)


def refuse(context: AttemptContext, found: Opening, failure: Any) -> None:
    """Record a tool call that reached no tool, unless its end has told of the same failure."""
    if failure is _REPORTED.get():
        return
    recorder = context.recorder
    span = recorder.start(
        found.kind,
        found.name,
        attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **found.attributes},
        scope=current_scope(),
    )
    recorder.end(span, status="error", error=failure.message)
