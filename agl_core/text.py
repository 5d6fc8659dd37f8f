r"""Encode text that contains lone surrogates.

A Python string may contain one half of a surrogate pair, which UTF-8 cannot encode: a program split
an emoji, or the operating system passed bytes that are not UTF-8. Any text of a run may contain
one: names, ids, inputs, operations, channels, messages, errors. Its use decides how it is encoded:

====================== ===========================================  =============================
Lone surrogates        Functions                                    Use
====================== ===========================================  =============================
kept                   `exact_bytes`, `url_quoted`, `json_bytes`    records, hashes, keys, URLs
escaped, ``\ud83d``     `escaped`, `escape_what_stream_lacks`        text for people
replaced, U+FFFD       `replaced`, `replaced_json`, `decoded`       text for other programs
bytes of the system    `system_bytes`, `system_text`                headers and the environment
====================== ===========================================  =============================

`agl_core.store` has its own escape for text in the database.
"""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any, Final, TextIO, cast
from urllib.parse import quote, unquote

import msgspec

_LONE: Final = re.compile("[\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"
_JSON_ESCAPE: Final = re.compile(
    rb"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def has_lone_surrogate(text: str) -> bool:
    """Whether the text contains a lone surrogate, so that UTF-8 cannot encode it."""
    return not text.isascii() and _LONE.search(text) is not None


def exact_bytes(text: str) -> bytes:
    """Encode as UTF-8 extended to lone surrogates, so that different texts give different bytes.

    For hashes, sizes and keys only: UTF-8 decoders refuse the extension.
    """
    return text.encode("utf-8", "surrogatepass")


def url_quoted(text: str) -> str:
    """Percent-encode a text for a URL or a header; `url_unquoted` restores it."""
    return quote(text, safe="", errors="surrogatepass")


def url_unquoted(text: str) -> str:
    """Decode a text from `url_quoted`.

    Raises:
        UnicodeDecodeError: the bytes are not the encoding of a text.
    """
    return unquote(text, errors="surrogatepass") if "%" in text else text


def escaped(text: str) -> str:
    r"""Replace each lone surrogate by its escape, such as ``\ud83d``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_what_stream_lacks(stream: TextIO) -> None:
    """Make a stream write escapes for characters that its encoding lacks, instead of failing."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def replaced(text: str) -> str:
    """Replace each lone surrogate by U+FFFD."""
    return text if text.isascii() else _LONE.sub(_REPLACEMENT, text)


def replaced_json(data: bytes) -> bytes:
    """Replace each escape of a lone surrogate in JSON by U+FFFD.

    Programs that split an emoji and escape all non-ASCII characters send such JSON. Neither msgspec
    nor tokenizers accept it.
    """
    return _JSON_ESCAPE.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], data)


def joined_halves(text: str) -> str:
    """Join adjacent halves of a surrogate pair, and replace other lone surrogates by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def cut_half(text: str) -> tuple[str, str]:
    """Split off a high surrogate at the end of the text; return the text and it, or empty."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")


def decoded(data: bytes) -> str:
    """Decode another program's bytes for display, with U+FFFD for bytes that are not UTF-8."""
    return data.decode("utf-8", "replace")


def system_bytes(text: str) -> bytes:
    """Return the original bytes of a header or an environment variable.

    Raises:
        UnicodeEncodeError: the text contains a surrogate that does not represent a byte.
    """
    return text.encode("utf-8", "surrogateescape")


def system_text(data: bytes) -> str:
    """Decode the bytes of a header; `system_bytes` restores them."""
    return data.decode("utf-8", "surrogateescape")


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Encode a record as JSON in UTF-8.

    Lone surrogates are written as escapes, integers may have any length. Infinity and NaN, which
    JSON cannot express, become null.

    Raises:
        TypeError: the value contains an object that JSON cannot express.
        RecursionError: the value contains itself or is nested too deeply.
    """
    try:
        data = msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        tree = _finite(msgspec.to_builtins(value))
        return json.dumps(tree, separators=None if indent else (",", ":"), indent=indent).encode()
    return msgspec.json.format(data, indent=indent) if indent else data


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _finite(item) for key, item in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, list | tuple):
        return [_finite(item) for item in cast("list[Any]", tree)]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
