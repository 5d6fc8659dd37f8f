"""OpenAI chat completions: what the gateway reads of an answer, and what of it the client sees.

Answers are large and mostly log-probabilities, so neither side is turned into Python objects as a
whole: reading skips every field that is not named here, and taking fields out splices the raw JSON.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_core.gateway.dialects.chat import Wants

__all__ = ["Message", "Payload", "Row", "read", "strip_chunk", "strip_response"]

_NULL: Final = msgspec.Raw(b"null")


class Logprob(msgspec.Struct, gc=False):
    """One sampled token's entry; its text, bytes and alternatives are skipped."""

    logprob: float


class Logprobs(msgspec.Struct):
    content: list[Logprob] | None = None


class Message(msgspec.Struct):
    """A ``message``, or a part of one in a ``delta``."""

    content: Any = None
    """Text, or with some servers a list of parts."""
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[dict[str, Any]] | None = None


class Row(msgspec.Struct):
    """One of the ``choices``."""

    index: int | None = None
    message: Message | None = None
    delta: Message | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Payload(msgspec.Struct):
    """A whole answer or one chunk of a stream."""

    id: str | None = None
    model: str | None = None
    choices: list[Row] | None = None
    prompt_token_ids: list[int] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_payload = msgspec.json.Decoder(Payload)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_rows = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_encoder = msgspec.json.Encoder()


def read(data: bytes) -> Payload:
    """What an answer or a chunk says.

    Raises:
        msgspec.DecodeError: it is no JSON object, or a field has another type than it should.
    """
    try:
        return _payload.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def strip_response(data: bytes, wants: Wants, *, model: str) -> bytes:
    """Take out what the client did not ask for.

    Args:
        data: An answer with ``choices`` that `read` could read.
        wants: What the client asked for.
        model: The name that it asked for.
    """
    fields = _fields.decode(data)
    return _stripped(fields, _rows.decode(fields["choices"]), wants, model)


def strip_chunk(data: bytes, wants: Wants, *, model: str) -> bytes:
    """`strip_response` for one chunk of a stream; empty when nothing is left for the client."""
    fields = _fields.decode(data)
    rows = _rows.decode(fields["choices"])
    if not wants.usage and fields.pop("usage", None) is not None and not rows:
        return b""
    return _stripped(fields, rows, wants, model)


def _stripped(
    fields: dict[str, msgspec.Raw],
    rows: list[dict[str, msgspec.Raw]],
    wants: Wants,
    model: str,
) -> bytes:
    if not wants.token_ids:
        fields.pop("prompt_token_ids", None)
        for row in rows:
            row.pop("token_ids", None)
    if not wants.logprobs:
        for row in rows:
            if "logprobs" in row:
                row["logprobs"] = _NULL
    answer: dict[str, Any] = {**fields, "model": model, "choices": rows}
    return _encoder.encode(answer)
