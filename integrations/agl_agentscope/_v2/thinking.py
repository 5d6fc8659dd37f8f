"""Move the thoughts of answers with think tags into thinking blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agentscope.message import TextBlock, ThinkingBlock
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatResponse

from agl_agentscope._thinking import split_text, tags
from agl_core.thinking import Part, ThinkParser

Stream = AsyncGenerator[ChatResponse, None]


class ThinkTagsMiddleware(MiddlewareBase):
    """Splits answers with ``<think>`` tags into thinking and text blocks.

    `AglMiddleware` does so in rollouts; this class also does so outside. Thoughts that the model
    server has parsed are thinking blocks in any case. The framework's own formatters do not send
    thinking blocks back to the model.
    """

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]
    ) -> ChatResponse | Stream:
        """Split the model's answer."""
        del agent
        answer: ChatResponse | Stream = await next_handler(**input_kwargs)
        return split(answer)


def split(answer: ChatResponse | Stream) -> ChatResponse | Stream:
    """Return the answer with thinking blocks, unchanged if its text has no think tags."""
    return _whole(answer) if isinstance(answer, ChatResponse) else _streamed(answer)


def _whole(answer: ChatResponse) -> ChatResponse:
    names, content, changed = tags(), list[Any](), False
    for block in answer.content:
        parts = split_text(block.text, names) if isinstance(block, TextBlock) else None
        content += [block] if parts is None else [_block(part) for part in parts]
        changed = changed or parts is not None
    return replace(answer, content=content) if changed else answer


def _block(part: Part, block_id: str | None = None) -> TextBlock | ThinkingBlock:
    fields: dict[str, Any] = {} if block_id is None else {"id": block_id}
    if part.kind == "thinking":
        return ThinkingBlock(thinking=part.text, **fields)
    return TextBlock(text=part.text, **fields)


async def _streamed(answer: Stream) -> Stream:
    parser = ThinkParser(tags=tags())
    async with aclosing(answer):
        async for chunk in answer:
            if chunk.is_last:
                for part in parser.finish():
                    yield replace(chunk, content=[_block(part)], is_last=False, usage=None)
                yield _whole(chunk)
                return
            for piece in _pieces(chunk, parser):
                yield piece


def _pieces(chunk: ChatResponse, parser: ThinkParser) -> list[ChatResponse]:
    """Split a chunk into chunks of one kind each; the parser holds back text that may be a tag."""
    texts = [block for block in chunk.content if isinstance(block, TextBlock)]
    if not texts:
        return [chunk]
    text = "".join(block.text for block in texts)
    parts = parser.feed(text)
    if parts == [Part("text", text)]:
        return [chunk]
    others = [block for block in chunk.content if not isinstance(block, TextBlock)]
    pieces = [replace(chunk, content=[_block(part, texts[0].id)]) for part in parts]
    return [*pieces, replace(chunk, content=others)] if others else pieces
