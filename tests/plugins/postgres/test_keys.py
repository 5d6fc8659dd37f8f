"""Any text as a key, and what notifications carry."""

from __future__ import annotations

import json

from agl_postgres._listener import payloads
from agl_stores import key, unkey
from hypothesis import given
from hypothesis import strategies as st

from agl_core.store import Changes

ODD = st.text(
    st.one_of(
        st.sampled_from(
            "\x00\x01\x02a\ud7ff\ud800\ud83d\udfff\ue000\ue001\uffff\u1000\u0100\u08ff"
        ),
        st.characters(exclude_categories=()),
    ),
    max_size=6,
)


@given(ODD, ODD)
def test_keys_are_text_of_the_database_and_keep_order(one, other):
    for text in (one, other):
        assert unkey(key(text)) == text
        assert "\0" not in key(text)
        key(text).encode()
    assert (key(one).encode() < key(other).encode()) == (one < other)


def test_plain_text_is_its_own_key():
    assert key("ro_01j\u00e9 \U0001f600") == "ro_01j\u00e9 \U0001f600"


@given(st.lists(ODD, max_size=50), st.integers(0, 3))
def test_notifications_carry_every_id(ids, queued):
    texts = list(payloads("me", Changes(queued=queued, final=ids)))
    assert [one for text in texts for one in json.loads(text)["final"]] == ids
    assert sum(json.loads(text)["queued"] for text in texts) == queued


def test_many_and_long_ids_are_divided():
    ids = [f"ro_{n:020}" for n in range(2000)]
    texts = list(payloads("me", Changes(final=[*ids, "\0" * 2000])))
    assert all(len(text) < 8000 and text.isascii() for text in texts)
    assert [one for text in texts for one in json.loads(text)["final"]] == ids
    assert any(json.loads(text).get("again") for text in texts)
