r"""Text with lone surrogates: the one place that decides what becomes of them.

A Python string may hold half of a surrogate pair, for which UTF-8 has no form: a program cut an
emoji in two, or the system handed over bytes that are not UTF-8. Any text of a run may hold one:
names, ids, inputs, operations, channels, messages, errors. Four policies, by where the text goes:

====================== ===========================================  =============================
Policy                 Functions                                    Where
====================== ===========================================  =============================
kept                   `exact_bytes`, `url_quoted`, `json_bytes`    the record; hashes, keys, URLs
escaped, ``\ud83d``     `escaped`, `escape_what_stream_lacks`        what people read
replaced, U+FFFD       `replaced`, `replaced_json`, `decoded`       what other programs read
bytes of the system    `system_bytes`, `system_text`                headers and the environment
====================== ===========================================  =============================

The store keeps text by an escape of its own encoding, `agl_core.store`.
"""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any, Final, TextIO, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec

T = TypeVar("T")

_LONE: Final = re.compile("[\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"
_JSON_ESCAPE: Final = re.compile(
    rb"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def has_lone_surrogate(text: str) -> bool:
    """Whether UTF-8 has no form for the text."""
    return not text.isascii() and _LONE.search(text) is not None


def exact_bytes(text: str) -> bytes:
    """Bytes that differ for different texts: UTF-8, extended to lone surrogates.

    For hashes, sizes and keys. Decoders of UTF-8 refuse the extension.
    """
    return text.encode("utf-8", "surrogatepass")


def url_quoted(text: str) -> str:
    """Percent-encoded as a part of a URL or as a header's value; `url_unquoted` restores it."""
    return quote(text, safe="", errors="surrogatepass")


def url_unquoted(text: str) -> str:
    """What `url_quoted` encoded.

    Raises:
        UnicodeDecodeError: the bytes are not those of a text.
    """
    return unquote(text, errors="surrogatepass") if "%" in text else text


def escaped(text: str) -> str:
    r"""The text with each lone surrogate written out, such as ``\ud83d``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_what_stream_lacks(stream: TextIO) -> None:
    """Have a stream write escapes for characters that its encoding lacks, instead of failing."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def replaced(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate."""
    return text if text.isascii() else _LONE.sub(_REPLACEMENT, text)


def replaced_json(data: bytes) -> bytes:
    """JSON with U+FFFD in place of each lone surrogate that is written as an escape.

    Programs that cut text inside an emoji and escape what is not ASCII send such JSON. Neither
    msgspec nor tokenizers accept it.
    """
    return _JSON_ESCAPE.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], data)


def joined_halves(text: str) -> str:
    """`replaced`, with two halves that stand next to each other joined into their character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def cut_half(text: str) -> tuple[str, str]:
    """The text without a first half of a pair at its end, and that half; empty where there is none."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")


def decoded(data: bytes) -> str:
    """Bytes of another program as text to show, with U+FFFD in place of what is not UTF-8."""
    return data.decode("utf-8", "replace")


def system_bytes(text: str) -> bytes:
    """The bytes that a header or an environment variable had before the system decoded them.

    Raises:
        UnicodeEncodeError: the text holds a surrogate that stands for no byte.
    """
    return text.encode("utf-8", "surrogateescape")


def system_text(data: bytes) -> str:
    """The bytes of a header as text; `system_bytes` restores them."""
    return data.decode("utf-8", "surrogateescape")


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """A record as JSON in UTF-8: a lone surrogate as its escape, an integer of any length.

    Infinity and NaN, for which JSON has no form, become null. `read_json` reads it back.

    Raises:
        TypeError: the value holds an object without a JSON form.
        RecursionError: the value contains itself or is nested too deep.
    """
    try:
        data = msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        tree = _finite(msgspec.to_builtins(value))
        return json.dumps(tree, separators=None if indent else (",", ":"), indent=indent).encode()
    return msgspec.json.format(data, indent=indent) if indent else data


def read_json(data: bytes, kind: type[T]) -> T:
    """Read what `json_bytes` wrote as a record of type `kind`.

    Raises:
        msgspec.MsgspecError: it is no JSON, or no such record.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            tree = json.loads(data)
        except ValueError:
            raise error from None
        return msgspec.convert(tree, kind)


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _finite(item) for key, item in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, list | tuple):
        return [_finite(item) for item in cast("list[Any]", tree)]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
