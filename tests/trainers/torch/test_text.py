"""Tokens to text, and stop strings, for every way the tokens come."""

from __future__ import annotations

import unicodedata
from functools import partial

import pytest
from agl_torch.chat.text import Detokenizer, StopText, Vocabulary
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="session")
def vocabulary(tokenizer):
    return Vocabulary(tokenizer)


def fed(vocabulary, pieces):
    detokenizer = Detokenizer(vocabulary)
    return "".join([detokenizer.feed(piece) for piece in pieces] + [detokenizer.finish()])


@given(st.lists(st.integers(0, 263), max_size=40), st.integers(1, 5))
def test_every_cut_of_any_tokens_gives_the_text_of_the_whole(vocabulary, tokens, size):
    pieces = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    assert fed(vocabulary, pieces) == fed(vocabulary, [tokens]) == vocabulary.decode(tokens)


@given(st.text(max_size=20).map(partial(unicodedata.normalize, "NFC")))
def test_text_survives_byte_by_byte(vocabulary, tokenizer, text):
    tokens = tokenizer(text)["input_ids"]
    assert fed(vocabulary, [[token] for token in tokens]) == text


def test_control_tokens_are_silent_and_tool_markers_are_not(vocabulary):
    assert vocabulary.decode([257, 64, 258, 259, 260]) == "a<tool_call></tool_call>"
    assert vocabulary.token(258) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_have_no_text(vocabulary):
    assert vocabulary.decode([64, 5000]) == "a"


@given(
    st.text(alphabet="ab.", max_size=20),
    st.lists(st.text(alphabet="ab.", min_size=1, max_size=3), max_size=3),
    st.integers(1, 4),
)
def test_text_ends_before_the_first_stop(text, stops, size):
    stop = StopText(stops)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    got = "".join([stop.feed(piece) for piece in pieces] + [stop.finish()])
    ends = [text.find(s) for s in stops if s in text]
    if size == 1 or not ends:  # as sampled: generation ends at the first stop that is complete
        first = min(
            ((text.find(s) + len(s), text.find(s)) for s in stops if s in text), default=None
        )
        if first is not None:
            whole = text[: first[0]]
            ends = [whole.find(s) for s in stops if s in whole]
        assert got == (text[: min(ends)] if ends else text)
    assert text.startswith(got)
