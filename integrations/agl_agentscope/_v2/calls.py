"""A model of the framework whose requests have a span each, the repeated ones too."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

from agentscope.model import ChatResponse

from agl_agentscope._pieces import FRAMEWORK, PIECES
from agl_agentscope._v2 import told
from agl_core import semconv
from agl_core.tracing import Opening, Piece, active, guarded
from agl_core.types import SpanKind

_REQUEST = "_call_api"
"""What a class of models implements: one request. The framework repeats it when it fails."""


def recording(model: Any, turn: Opening) -> Any:
    """A copy of the model that records; what has no `_REQUEST` is left to the wire.

    Args:
        model: Of the framework.
        turn: Whose turn it is.
    """
    request = getattr(model, _REQUEST, None)
    if request is None:
        return model
    copied = copy.copy(model)
    setattr(copied, _REQUEST, _recorded(request, str(model.model), turn))
    return copied


def _recorded(request: Callable[..., Any], name: str, turn: Opening) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        piece = _open_call(name, turn)
        if piece is None:
            return await request(*args, **kwargs)
        answer: Any = await piece.run(lambda: request(*args, **kwargs))
        if isinstance(answer, ChatResponse):
            piece.end(attributes=_told(answer))
            return answer
        stream: AsyncGenerator[ChatResponse, None] = answer
        return piece.through(stream, lambda chunk: _tell(piece, chunk))

    return call


@guarded(FRAMEWORK)
def _open_call(model: str, turn: Opening) -> Piece | None:
    context = active()
    if context is None:
        return None
    return PIECES.open(
        context,
        Opening(
            kind=SpanKind.LLM,
            scope="call",
            name=model,
            agent=turn.agent,
            agent_run_id=turn.agent_run_id,
            trainable=turn.trainable,
            attributes={
                semconv.GEN_AI_OPERATION_NAME: "chat",
                semconv.GEN_AI_REQUEST_MODEL: model,
            },
        ),
    )


_told = guarded(FRAMEWORK)(told.answer)


@guarded(FRAMEWORK)
def _tell(piece: Piece, answer: ChatResponse) -> None:
    if answer.is_last or answer.usage is not None:
        piece.tell(told.answer(answer))
