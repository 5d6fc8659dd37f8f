"""Differences word by word."""

from __future__ import annotations

import pytest
from agl_prompts._diff import MARKS, difference
from hypothesis import given
from hypothesis import strategies as st

texts = st.lists(st.sampled_from(["a", "b", "cc", ".", " ", "  ", "\n"]), max_size=14).map("".join)


def marked(before, after):
    return "".join(
        f"{MARKS[piece.kind][0]}{piece.text}{MARKS[piece.kind][1]}"
        for piece in difference(before, after)
    )


@given(texts, texts)
def test_the_pieces_make_both_texts(before, after):
    pieces = difference(before, after)
    assert "".join(piece.text for piece in pieces if piece.kind != "added") == before
    assert "".join(piece.text for piece in pieces if piece.kind != "removed") == after
    assert all(piece.text for piece in pieces)
    if before == after:
        assert {piece.kind for piece in pieces} <= {"same"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("Write one line.", "Write two lines.", "Write [-one line-]{+two lines+}."),
        ("a b c", "a x y c", "a [-b-]{+x y+} c"),
        ("Write it.", "Write it.\nBe kind.", "Write it.{+\nBe kind.+}"),
        ("Say {it}.", "Kindly say {it}!", "[-Say-]{+Kindly say+} {it}[-.-]{+!+}"),
        ("a  b", "a b", "a[- -] b"),
        ("a b", "", "[-a b-]"),
        ("", "a b", "{+a b+}"),
    ],
)
def test_changes_are_marked_without_colours(before, after, expected):
    assert marked(before, after) == expected
