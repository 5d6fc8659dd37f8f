"""JSON that strict parsers refuse: lone surrogates, NaN and Infinity."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, MutableMapping
from typing import Any, Final, cast

from agl_core.text import cut_half, has_lone_surrogate, joined_halves, replaced_json

__all__ = ["Halves", "repaired"]

_TOKEN: Final = re.compile(rb'"(?:[^"\\]+|\\.)*"?|(?P<number>-?Infinity|-?NaN)', re.DOTALL)
"""A string, closed or not, or a number that JSON has no form for."""
_BOM: Final = b"\xef\xbb\xbf"
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")


def repaired(data: bytes, *, numbers: bool = True) -> bytes:
    """`replaced_json`, with null for NaN and Infinity and without a byte order mark: JSON for every parser."""
    data = replaced_json(data.removeprefix(_BOM))
    if numbers and (b"NaN" in data or b"Infinity" in data):
        data = _TOKEN.sub(lambda match: b"null" if match["number"] else match[0], data)
    return data


class Halves:
    """Joins characters whose two halves come in two deltas of a stream.

    A delta that ends in a high surrogate keeps it back for the next delta of the same text. A half
    that stays alone becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], str] = {}
        """By choice and field: the half that the last delta ended in."""

    def join(self, data: bytes) -> bytes:
        """The chunk as the client receives it; the same object where nothing is cut in half."""
        if not self._held and b"\\u" not in data:
            return data
        try:
            chunk: Any = json.loads(data)
            alone = has_lone_surrogate(json.dumps(chunk, ensure_ascii=False))
        except (ValueError, RecursionError):
            return data
        if not isinstance(chunk, dict) or not (self._held or alone):
            return data
        fields = cast("dict[str, Any]", chunk)
        for row in _objects(fields.get("choices")):
            self._join_row(row)
        return replaced_json(json.dumps(fields).encode())

    def _join_row(self, row: dict[str, Any]) -> None:
        delta: Any = row.get("delta")
        choice = str(row.get("index") or 0)
        if isinstance(delta, dict):
            for where, owner, name in _texts(cast("dict[str, Any]", delta)):
                self._join_text((choice, *where), owner, name)
        if row.get("finish_reason") is not None:
            held = [key for key in self._held if key[0] == choice]
            for key in held:
                del self._held[key]
                if len(key) == 2:  # noqa: PLR2004 (choice and field)
                    _append(row, key[1], "\ufffd")

    def _join_text(self, key: tuple[Any, ...], owner: MutableMapping[str, Any], name: str) -> None:
        text: str = self._held.pop(key, "") + owner[name]
        text, half = cut_half(text)
        if half:
            self._held[key] = half
        owner[name] = joined_halves(text)


def _append(row: dict[str, Any], name: str, text: str) -> None:
    """Add to a text of the row's delta; a field that holds something else is left as it is."""
    delta: Any = row.get("delta")
    if delta is None:
        delta = row["delta"] = {}
    if isinstance(delta, dict):
        fields = cast("dict[str, Any]", delta)
        before: Any = fields.get(name) or ""
        if isinstance(before, str):
            fields[name] = before + text


def _texts(delta: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str]]:
    """The texts of a delta that are not empty: what names each, the object it stands in, its key."""
    for name in _TEXTS:
        if isinstance(delta.get(name), str) and delta[name]:
            yield (name,), delta, name
    calls = [
        (str(call.get("index", at)), call)
        for at, call in enumerate(_objects(delta.get("tool_calls")))
    ]
    functions = [(index, call.get("function")) for index, call in calls]
    for index, function in [*functions, ("", delta.get("function_call"))]:
        if isinstance(function, dict):
            fields = cast("dict[str, Any]", function)
            if isinstance(fields.get("arguments"), str) and fields["arguments"]:
                yield ("arguments", index), fields, "arguments"


def _objects(value: Any) -> list[dict[str, Any]]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
