"""Chat completion answers: decode the fields that the gateway uses, and build the client's answer.

Answers are large and consist mostly of log-probabilities, so an answer is not decoded completely.
One pass splits it into raw fields, a second one decodes the fields that the gateway uses. The
client's answer is built from the raw fields.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, cast

import msgspec

from agl_core.gateway._chat import Wants
from agl_core.gateway._tool_calls import CallPart, FunctionPart
from agl_core.interfaces import TokenUsage
from agl_core.text import decoded, replaced_json

__all__ = ["AudioFields", "ChoiceFields", "MessageFields", "Payload", "read_loosely"]


class Logprob(msgspec.Struct, gc=False):
    """One sampled token's entry; its text, bytes and alternatives are skipped."""

    logprob: float


class Logprobs(msgspec.Struct):
    content: list[Logprob] | None = None


class AudioFields(msgspec.Struct):
    """Speech; its data is skipped."""

    id: str | None = None
    transcript: str | None = None


class MessageFields(msgspec.Struct):
    """A ``message``, or a part of one in a ``delta``."""

    content: str | list[Any] | None = None
    """Text; some servers send a list of parts."""
    reasoning_content: str | list[Any] | None = None
    reasoning: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[CallPart] | None = None
    function_call: FunctionPart | None = None
    audio: AudioFields | None = None


class ChoiceFields(msgspec.Struct):
    """One of the ``choices``."""

    index: int | None = None
    message: MessageFields | None = None
    delta: MessageFields | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None

    def content(self, *, whole: bool) -> MessageFields | None:
        """Return the message of a whole answer or the delta of a chunk; servers mix them up."""
        return self.message or self.delta if whole else self.delta or self.message


class AnswerFields(msgspec.Struct):
    """A whole answer, or a chunk of one."""

    id: str | None = None
    model: str | None = None
    choices: list[ChoiceFields] | None = None
    prompt_token_ids: list[int] | None = None
    usage: TokenUsage | None = None


class _Known(AnswerFields):
    """All fields of an answer that are decoded."""

    error: Any = None
    object: Any = None


_NULL: Final = msgspec.Raw(b"null")
_NO_CHOICES: Final = (b"[]", b"null")
_Decoder = msgspec.json.Decoder
_FIELDS: Final = _Decoder(dict[str, msgspec.Raw])
_KNOWN: Final = _Decoder(_Known)
_RAW_ROWS: Final = _Decoder(list[dict[str, msgspec.Raw]])
_RAW_LIST: Final = _Decoder(list[msgspec.Raw])
_ANY: Final = _Decoder(Any)
_ENCODER: Final = msgspec.json.Encoder()
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MOST_FAULTS: Final = 32
_LONGEST: Final = 300
"""Largest number of digits of an integer."""


_TOKEN: Final = re.compile(rb'"(?:[^"\\]+|\\.)*"?|(?P<number>-?Infinity|-?NaN)', re.DOTALL)
"""A string, closed or not, or a number that JSON cannot express."""
_BOM: Final = b"\xef\xbb\xbf"


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
        """Read a payload; invalid fields are left out, and `faults` names them.

        Raises:
            msgspec.DecodeError: the payload is not a JSON object.
        """
        self.data = data
        """The received bytes, repaired if they are not valid JSON."""
        self.faults: list[str] = []
        try:
            if not data.isascii():
                data.decode()  # msgspec does not check the UTF-8 of raw fields
            self._read_all(data)
        except _UNREADABLE:
            self._read_otherwise(data)

    def _read_all(self, data: bytes) -> None:
        self._fields = _FIELDS.decode(data)
        known = _KNOWN.decode(data)
        self._take(known, known.error)
        if known.object == "error" and not (self.error or self.choices):
            self.error = _ANY.decode(data)

    def _take(self, read: AnswerFields, error: Any) -> None:
        self.id, self.model, self.choices = read.id, read.model, read.choices
        self.prompt_token_ids, self.usage = read.prompt_token_ids, read.usage
        self.error: Any = error

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
        self._take(read, document.get("error"))
        if document.get("object") == "error" and not (self.error or self.choices):
            self.error = document

    def read_as_error(self) -> None:
        """Use the whole object as the error, for an event named ``error`` without that field."""
        self.error = self.error or _ANY.decode(self.data)

    def stripped(self, wants: Wants, *, model: str) -> bytes:
        """Return the answer without fields that the client did not request.

        An answer without ``choices`` is returned unchanged.

        Args:
            wants: The optional fields that the client requested.
            model: The model's name in the client's request.
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
        """Return a chunk of a stream like `stripped`; empty if nothing is left for the client."""
        if "choices" not in self._fields:
            return self.data
        usage = _NULL if wants.usage else self._fields.pop("usage", _NULL)
        silent = bytes(self._fields["choices"]) in _NO_CHOICES and not self.error
        if bytes(usage) != b"null" and silent:
            return b""
        return self.stripped(wants, model=model)


def _stripped_rows(raw: msgspec.Raw, wants: Wants) -> Any:
    """Return the choices without ids and log-probabilities that the client did not request."""
    try:
        return [_stripped_row(row, wants) for row in _RAW_ROWS.decode(raw)]
    except _UNREADABLE:
        pass
    try:
        return [_stripped_any(row, wants) for row in _RAW_LIST.decode(raw)]
    except _UNREADABLE:  # not a list
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


def repaired(data: bytes, *, numbers: bool = True) -> bytes:
    """Apply `replaced_json`, remove a byte order mark, and replace NaN and Infinity by null."""
    data = replaced_json(data.removeprefix(_BOM))
    if numbers and (b"NaN" in data or b"Infinity" in data):
        data = _TOKEN.sub(lambda match: b"null" if match["number"] else match[0], data)
    return data


def read_loosely(data: bytes) -> tuple[AnswerFields, Any, list[str]]:
    """Read an answer with invalid fields, which are left out.

    Returns:
        The fields, the whole document, and the faults: path, expected type and value of each
        invalid field.

    Raises:
        msgspec.DecodeError: the data is not a JSON object.
    """
    faults: list[str] = []
    # NaN and Infinity are kept here, so that a fault can quote them.
    text = repaired(data, numbers=False)
    try:
        document: Any = json.loads(
            text, parse_constant=_NoNumber, parse_float=_float, parse_int=_int
        )
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise msgspec.ValidationError(f"Expected `object`, got `{kind}`")
    fields = cast("dict[str, Any]", document)
    return _converted(fields, faults), fields, faults


class _NoNumber:
    """A number that no field can hold: NaN, an infinity, or an integer with too many digits."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _float(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _NoNumber(text)


def _int(text: str) -> Any:
    return int(text) if len(text) <= _LONGEST else _NoNumber(text)


def _converted(document: dict[str, Any], faults: list[str]) -> AnswerFields:
    wanted = {name: document[name] for name in AnswerFields.__struct_fields__ if name in document}
    named: set[str] = set()
    for _ in range(_MOST_FAULTS):
        try:
            return msgspec.convert(wanted, AnswerFields)
        except msgspec.ValidationError as error:
            found = _AT.match(str(error))
            assert found is not None
            path = found["path"] or ""
            value = _leave_out(wanted, path, what=found["what"])
            if path not in named:
                faults.append(f"{path.lstrip('.')}: {found['what']}: {value!r:.80}")
            named.add(path)
    faults.append("and more")
    return AnswerFields()


def _leave_out(document: dict[str, Any], path: str, *, what: str) -> Any:
    """Remove the value at the path of an error, or the object around it; return the value."""
    steps: list[str | int] = [int(at) if at else name for name, at in _STEP.findall(path)]
    owners: list[Any] = [document]
    for step in steps[:-1]:
        owners.append(owners[-1][step])
    value = owners[-1][steps[-1]]
    for owner, step in zip(reversed(owners), reversed(steps), strict=True):
        if isinstance(step, int):
            if "`object" in what and not isinstance(owner[step], dict):
                owner[step] = {}
                break
        elif owner[step] is not None:
            owner[step] = None
            break
    return value
