"""Text with lone surrogates: each policy keeps what it promises, for any text."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core import text as texts

PARTS = st.sampled_from(
    ["\ud83d", "\ude00", "\udcff", "😀", "é", "\\", "u", "d83d", '"', "\0", "a"]
)
TEXT = st.text(st.characters(codec=None)) | st.lists(PARTS).map("".join)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8
)


def has_no_form(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def as_read(value: Any, text: Any = lambda text: text) -> Any:
    """A value as Python reads it from JSON: infinity as null, halves that meet as a character."""
    if isinstance(value, str):
        return text(json.loads(json.dumps(value)))
    if isinstance(value, dict):
        return {as_read(key, text): as_read(item, text) for key, item in value.items()}
    if isinstance(value, float) and value in (float("inf"), -float("inf")):
        return None
    return [as_read(item, text) for item in value] if isinstance(value, list) else value


@given(TEXT)
def test_text_that_utf_8_lacks_is_found(text: str) -> None:
    assert texts.has_lone_surrogate(text) == has_no_form(text)


@given(TEXT, TEXT)
def test_kept_text_differs_where_texts_differ(one: str, other: str) -> None:
    assert (texts.exact_bytes(one) == texts.exact_bytes(other)) == (one == other)
    quoted = texts.url_quoted(one)
    assert quoted.isascii()
    assert not set(quoted) & set("/?#& \r\n")
    assert texts.url_unquoted(quoted) == one


@given(TEXT)
def test_escaped_and_replaced_text_has_a_form_and_other_text_stays(text: str) -> None:
    for policy in (texts.escaped, texts.replaced, texts.joined_halves):
        assert not has_no_form(policy(text))
        assert has_no_form(text) or policy(text) == text
    assert len(texts.replaced(text)) == len(text)


@given(TEXT, TEXT)
def test_halves_that_meet_in_two_pieces_are_one_character(one: str, other: str) -> None:
    begun, half = texts.cut_half(one)
    assert begun + half == one
    joined = texts.joined_halves(begun) + texts.joined_halves(half + other)
    assert joined == texts.joined_halves(one + other)


@given(st.binary())
def test_bytes_of_the_system_come_back(data: bytes) -> None:
    assert texts.system_bytes(texts.system_text(data)) == data
    assert not has_no_form(texts.decoded(data))


@given(JSON, st.sampled_from([None, 2]))
def test_records_come_back_and_every_parser_reads_them(value: Any, indent: int | None) -> None:
    data = texts.json_bytes(value, indent=indent)
    assert json.loads(data, parse_constant=pytest.fail) == as_read(value)


@given(JSON)
def test_only_lone_surrogates_are_replaced_in_json(value: Any) -> None:
    data = json.dumps(as_read(value)).encode()
    assert json.loads(texts.replaced_json(data)) == as_read(value, texts.replaced)


def test_a_stream_escapes_what_its_encoding_lacks() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="cp1252", newline="")
    texts.escape_what_stream_lacks(stream)
    stream.write(f"é \ud83d 😀{os.linesep}")
    stream.flush()
    assert written.getvalue() == f"é \\ud83d \\U0001f600{os.linesep}".encode("cp1252")
