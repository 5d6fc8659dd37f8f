"""OpenAI Responses: what of a chat completion, or of a chunk of one, becomes a response."""

from __future__ import annotations

from typing import Any

import msgspec

from agl_core.gateway.dialects.surrogates import mended

__all__ = ["CallPart", "Chunk", "Delta", "Usage", "plain_text", "read_chunk"]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class CallPart(msgspec.Struct):
    """A tool call, or a part of one."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None

    @property
    def name(self) -> str:
        return (self.function and self.function.name) or ""

    @property
    def arguments(self) -> str:
        return plain_text((self.function and self.function.arguments) or "")


class Delta(msgspec.Struct):
    """A message, or a part of one."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[CallPart] | None = None


class _Row(msgspec.Struct):
    index: int | None = None
    message: Delta | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class Chunk(msgspec.Struct):
    """A chunk, or a whole chat completion."""

    id: str | None = None
    choices: list[_Row] | None = None
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Read one.

    Raises:
        msgspec.DecodeError: it is no JSON object, or a field has another type than it should.
    """
    try:
        try:
            return _decoder.decode(data)
        except msgspec.DecodeError:
            return _decoder.decode(mended(data))
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def plain_text(value: Any) -> str:
    """Text as it is; parts, which some servers send instead, as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
