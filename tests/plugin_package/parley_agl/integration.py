"""An integration that records Parley's steps as spans and scopes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from parley import Speaker, Step

from agl_core import semconv
from agl_core.tracing import SpanScope, SpanStart, Tracer, active, guarded
from agl_core.types import Scope, SpanKind

FRAMEWORK: Final = "parley"
TRACER: Final = Tracer(FRAMEWORK)


class ParleyIntegration:
    """Parley, attached to the process."""

    name = FRAMEWORK

    def attach(self) -> None:
        """Record every step."""
        if watched not in Speaker.around:
            Speaker.around.append(watched)

    def detach(self) -> None:
        """Stop recording."""
        if watched in Speaker.around:
            Speaker.around.remove(watched)

    def identity(self) -> Scope | None:
        """Return None: the scope of a step is current where Parley sends its request."""
        return None


@contextmanager
def watched(step: Step) -> Generator[None, None, None]:
    """Record a step inside a rollout; outside of one, nothing."""
    span = _begin(step)
    if span is None:
        yield
        return
    with span:
        yield
        _note_result(span, step)


@guarded(FRAMEWORK)
def _begin(step: Step) -> SpanScope | None:
    context = active()
    return TRACER.open(context.recorder, _start(step)) if context is not None else None


def _start(step: Step) -> SpanStart:
    if step.kind == "speech":
        return TRACER.agent(step.name)
    if step.kind == "tool":
        return TRACER.tool(step.name, step.arguments or "")
    return SpanStart(SpanKind.LLM, step.name)


@guarded(FRAMEWORK)
def _note_result(span: SpanScope, step: Step) -> None:
    if step.kind == "tool":
        span.set_attributes({semconv.GEN_AI_TOOL_RESULT: step.result})
