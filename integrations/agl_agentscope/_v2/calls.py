"""Record each request of a model, also repeated ones, as a span."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

from agentscope.model import ChatResponse

from agl_agentscope._spans import FRAMEWORK, TRACER
from agl_agentscope._v2 import messages
from agl_core import semconv
from agl_core.tracing import SpanScope, SpanStart, active, guarded
from agl_core.types import SpanKind

_REQUEST = "_call_api"
"""Method of a model class that sends one request; the framework calls it again after a failure."""


def recording(model: Any, turn: SpanScope) -> Any:
    """Return a copy of the model that records its requests.

    The HTTP layer records the requests of a model without `_REQUEST`.

    Args:
        model: A model of the framework.
        turn: The span of the agent's turn that calls the model.
    """
    request = getattr(model, _REQUEST, None)
    if request is None:
        return model
    copied = copy.copy(model)
    setattr(copied, _REQUEST, _recorded(request, str(model.model), turn))
    return copied


def _recorded(request: Callable[..., Any], name: str, turn: SpanScope) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        span = _open_call(name, turn)
        if span is None:
            return await request(*args, **kwargs)
        answer: Any = await span.run(lambda: request(*args, **kwargs))
        if isinstance(answer, ChatResponse):
            span.end(attributes=_attributes(answer))
            return answer
        stream: AsyncGenerator[ChatResponse, None] = answer
        return span.stream(stream, lambda chunk: _note(span, chunk))

    return call


@guarded(FRAMEWORK)
def _open_call(model: str, turn: SpanScope) -> SpanScope | None:
    context = active()
    if context is None:
        return None
    attributes = {semconv.GEN_AI_OPERATION_NAME: "chat", semconv.GEN_AI_REQUEST_MODEL: model}
    start = SpanStart(
        SpanKind.LLM,
        model,
        agent=turn.span_agent,
        agent_run_id=turn.span_run_id,
        trainable=turn.trainable,
        attributes=attributes,
    )
    return TRACER.open(context.recorder, start)


_attributes = guarded(FRAMEWORK)(messages.answer)


@guarded(FRAMEWORK)
def _note(span: SpanScope, answer: ChatResponse) -> None:
    if answer.is_last or answer.usage is not None:
        span.set_attributes(messages.answer(answer))
