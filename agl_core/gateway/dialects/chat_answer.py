"""OpenAI chat completions: what the gateway reads of an answer, and what of it the client sees.

Answers are large and mostly log-probabilities, so none is turned into Python objects as a whole: one
scan cuts it into raw fields, those that are read are decoded, and what the client sees is put
together from the raw ones.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from agl_core.gateway.dialects.chat import Wants
from agl_core.gateway.dialects.surrogates import mended

__all__ = ["Message", "Payload", "Row"]

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


_Decoder = msgspec.json.Decoder
_FIELDS: Final = _Decoder(dict[str, msgspec.Raw])
_TEXT: Final = _Decoder(str | None)
_USAGE: Final = _Decoder(dict[str, Any] | None)
_IDS: Final = _Decoder(list[int] | None)
_ROWS: Final = _Decoder(list[Row] | None)
_RAW_ROWS: Final = _Decoder(list[dict[str, msgspec.Raw]])
_ANY: Final = _Decoder(Any)
_ENCODER: Final = msgspec.json.Encoder()

T = TypeVar("T")


class Payload:
    """A whole answer or one chunk of a stream."""

    __slots__ = ("_fields", "choices", "error", "id", "model", "prompt_token_ids", "usage")

    def __init__(self, data: bytes) -> None:
        """Read it.

        Raises:
            msgspec.DecodeError: it is no JSON object, or a field has another type than it should.
        """
        try:
            try:
                self._read_all(data)
            except msgspec.DecodeError:
                self._read_all(mended(data))
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(str(error)) from error

    def _read_all(self, data: bytes) -> None:
        self._fields = _FIELDS.decode(data)
        self.id = self._read("id", _TEXT)
        self.model = self._read("model", _TEXT)
        self.choices = self._read("choices", _ROWS)
        self.prompt_token_ids = self._read("prompt_token_ids", _IDS)
        self.usage = self._read("usage", _USAGE)
        self.error: Any = self._read("error", _ANY)

    def _read(self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        raw = self._fields.get(name)
        try:
            return None if raw is None else decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{name}: {error}") from error

    def stripped(self, wants: Wants, *, model: str) -> bytes:
        """The answer without what the client did not ask for.

        Args:
            wants: What the client asked for.
            model: The name that it asked for.
        """
        fields: dict[str, Any] = {**self._fields, "model": model}
        rows = _RAW_ROWS.decode(self._fields["choices"]) if self.choices else []
        if not wants.token_ids:
            fields.pop("prompt_token_ids", None)
            for row in rows:
                row.pop("token_ids", None)
        if not wants.logprobs:
            for row in rows:
                if "logprobs" in row:
                    row["logprobs"] = _NULL
        fields["choices"] = rows
        return _ENCODER.encode(fields)

    def stripped_chunk(self, wants: Wants, *, model: str) -> bytes:
        """`stripped` for one chunk of a stream; empty when nothing is left for the client."""
        if not wants.usage and self._fields.pop("usage", None) is not None and not self.choices:
            return b""
        return self.stripped(wants, model=model)
