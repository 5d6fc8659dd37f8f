"""OpenAI chat completions: what the gateway reads of an answer, and what of it the client sees.

Answers are large and mostly log-probabilities, so none is turned into Python objects as a whole: one
scan cuts it into raw fields, those that are read are decoded, and what the client sees is put
together from the raw ones.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from agl_core.gateway.dialects.answer_fields import Row, read_loosely
from agl_core.gateway.dialects.chat import Wants
from agl_core.gateway.dialects.surrogates import repaired
from agl_core.interfaces import TokenUsage
from agl_core.text import decoded

__all__ = ["Payload"]

_NULL: Final = msgspec.Raw(b"null")
_NO_CHOICES: Final = (b"[]", b"null")

_Decoder = msgspec.json.Decoder
_FIELDS: Final = _Decoder(dict[str, msgspec.Raw])
_TEXT: Final = _Decoder(str | None)
_USAGE: Final = _Decoder(TokenUsage | None)
_IDS: Final = _Decoder(list[int] | None)
_ROWS: Final = _Decoder(list[Row] | None)
_RAW_ROWS: Final = _Decoder(list[dict[str, msgspec.Raw]])
_RAW_LIST: Final = _Decoder(list[msgspec.Raw])
_ANY: Final = _Decoder(Any)
_ENCODER: Final = msgspec.json.Encoder()
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

T = TypeVar("T")


class Payload:
    """A whole answer or one chunk of a stream."""

    __slots__ = (
        "_fields",
        "choices",
        "data",
        "error",
        "faults",
        "id",
        "model",
        "prompt_token_ids",
        "usage",
    )

    def __init__(self, data: bytes) -> None:
        """Read it; `faults` names the fields that are not what they should be, which are left out.

        Raises:
            msgspec.DecodeError: it is no JSON object.
        """
        self.data = data
        """As it came, or as JSON for every parser where it was none."""
        self.faults: list[str] = []
        try:
            if not data.isascii():
                data.decode()  # raw fields are not checked
            self._read_all(data)
        except _UNREADABLE:
            self._read_otherwise(data)

    def _read_all(self, data: bytes) -> None:
        self._fields = _FIELDS.decode(data)
        self.id = self._read("id", _TEXT)
        self.model = self._read("model", _TEXT)
        self.choices = self._read("choices", _ROWS)
        self.prompt_token_ids = self._read("prompt_token_ids", _IDS)
        self.usage = self._read("usage", _USAGE)
        self.error: Any = self._read("error", _ANY)
        if not (self.error or self.choices) and self._read("object", _ANY) == "error":
            self.error = _ANY.decode(data)

    def _read(self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        raw = self._fields.get(name)
        return None if raw is None else decoder.decode(raw)

    def _read_otherwise(self, data: bytes) -> None:
        """Read malformed JSON or fields; clients get U+FFFD for bytes that are not UTF-8."""
        try:
            data.decode()
        except UnicodeDecodeError as error:
            self.faults.append(f"invalid UTF-8 at byte {error.start}")
            data = decoded(data).encode()
        fixed = repaired(data)
        try:
            if fixed != self.data:
                self._read_all(fixed)
                self.data = fixed
                return
        except _UNREADABLE:
            pass
        read, document, faults = read_loosely(data)
        self.faults += faults
        self.data = fixed
        self._fields = _FIELDS.decode(fixed)
        self.id, self.model, self.choices = read.id, read.model, read.choices
        self.prompt_token_ids, self.usage = read.prompt_token_ids, read.usage
        self.error = document.get("error")
        if not (self.error or self.choices) and document.get("object") == "error":
            self.error = document

    def read_as_error(self) -> None:
        """Take the whole object for an error, as in an event named so, unless a field is one."""
        self.error = self.error or _ANY.decode(self.data)

    def stripped(self, wants: Wants, *, model: str) -> bytes:
        """The answer without what the client did not ask for; one without choices as it is.

        Args:
            wants: What the client asked for.
            model: The name that it asked for.
        """
        if "choices" not in self._fields:
            return self.data
        fields: dict[str, Any] = {**self._fields, "model": model}
        if not wants.token_ids:
            fields.pop("prompt_token_ids", None)
        if self.choices or self.faults:
            fields["choices"] = _stripped_rows(self._fields["choices"], wants)
        return _ENCODER.encode(fields)

    def stripped_chunk(self, wants: Wants, *, model: str) -> bytes:
        """`stripped` for one chunk of a stream; empty when nothing is left for the client."""
        if "choices" not in self._fields:
            return self.data
        usage = _NULL if wants.usage else self._fields.pop("usage", _NULL)
        silent = bytes(self._fields["choices"]) in _NO_CHOICES and not self.error
        if bytes(usage) != b"null" and silent:
            return b""
        return self.stripped(wants, model=model)


def _stripped_rows(raw: msgspec.Raw, wants: Wants) -> Any:
    """The choices without ids and log-probabilities that the client did not ask for."""
    try:
        return [_stripped_row(row, wants) for row in _RAW_ROWS.decode(raw)]
    except _UNREADABLE:
        pass
    try:
        return [_stripped_any(row, wants) for row in _RAW_LIST.decode(raw)]
    except _UNREADABLE:  # no list
        return raw


def _stripped_any(raw: msgspec.Raw, wants: Wants) -> Any:
    try:
        return _stripped_row(_FIELDS.decode(raw), wants)
    except _UNREADABLE:
        return raw


def _stripped_row(row: dict[str, msgspec.Raw], wants: Wants) -> dict[str, msgspec.Raw]:
    if not wants.token_ids:
        row.pop("token_ids", None)
    if not wants.logprobs and "logprobs" in row:
        row["logprobs"] = _NULL
    return row
