"""Move the thoughts of answers with think tags into thinking blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from agentscope.message import TextBlock, ThinkingBlock
from agentscope.model import ChatModelBase, ChatResponse

from agl_agentscope._spans import TRACER
from agl_agentscope._thinking import split_text, tags

Stream = AsyncGenerator[ChatResponse, None]


class ThinkTagsModel(ChatModelBase):
    """A model whose answers with ``<think>`` tags are split into thinking and text blocks.

    In rollouts the integration splits the answers of all agents' models; this class also does so
    outside. Thoughts that the model server has parsed are thinking blocks in any case.
    """

    def __init__(self, model: ChatModelBase) -> None:
        """Wrap `model`; all other attributes are those of `model`."""
        object.__setattr__(self, "model", model)

    async def __call__(self, *args: Any, **kwargs: Any) -> ChatResponse | Stream:
        """Call the model and split its answer."""
        return split(await self.model(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "model"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.model, name, value)


def splitting(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap the ``__call__`` of a model class, so that agents get split answers."""

    async def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await original(model, *args, **kwargs)
        return split(answer) if live() and TRACER.speaker() is not None else answer

    return call


def split(answer: Any) -> Any:
    """Return the answer with thinking blocks, unchanged if its text has no think tags."""
    if isinstance(answer, ChatResponse):
        return _whole(answer, tags())
    return _streamed(cast("Stream", answer)) if isinstance(answer, AsyncGenerator) else answer


async def _streamed(answer: Stream) -> Stream:
    """Split each chunk as a whole, because it has the whole text so far."""
    names = tags()
    async with aclosing(answer):
        async for chunk in answer:
            yield _whole(chunk, names)


def _whole(answer: ChatResponse, names: Sequence[str]) -> ChatResponse:
    content, changed = list[Any](), False
    for block in cast("Sequence[Mapping[str, Any]]", answer.content):
        text = block.get("text") if block.get("type") == "text" else None
        parts = split_text(text, names) if isinstance(text, str) else None
        if parts is None:
            content.append(block)
            continue
        changed = True
        content += [_block(part.kind, part.text) for part in parts]
    return replace(answer, content=content) if changed else answer


def _block(kind: str, text: str) -> Mapping[str, Any]:
    if kind == "thinking":
        return cast("Mapping[str, Any]", ThinkingBlock(type="thinking", thinking=text))
    return cast("Mapping[str, Any]", TextBlock(type="text", text=text))
