"""Answers whose text has think tags, with the thoughts in thinking blocks."""

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
    """A model whose agent gets a thinking block and a text block where it thinks in ``<think>`` tags.

    In rollouts the models of agents do so anyway; this does it everywhere. What a model server has
    parsed already comes as a thinking block in any case.
    """

    def __init__(self, model: ChatModelBase) -> None:
        """Split what `model` answers; every other attribute is the model's own."""
        object.__setattr__(self, "model", model)

    async def __call__(self, *args: Any, **kwargs: Any) -> ChatResponse | Stream:
        """Ask the model; the framework's signature."""
        return split(await self.model(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "model"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.model, name, value)


def splitting(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap the ``__call__`` of a class of models: what an agent asks itself comes split."""

    async def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await original(model, *args, **kwargs)
        return split(answer) if live() and TRACER.speaker() is not None else answer

    return call


def split(answer: Any) -> Any:
    """The answer with thinking blocks; itself where there is no thought in its text."""
    if isinstance(answer, ChatResponse):
        return _whole(answer, tags())
    return _streamed(cast("Stream", answer)) if isinstance(answer, AsyncGenerator) else answer


async def _streamed(answer: Stream) -> Stream:
    """Every chunk has all that was said so far, so each is split as a whole."""
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
