"""Remembered prompts."""

from __future__ import annotations

import torch
from agl_torch.serving._prefix import PrefixStore
from hypothesis import given
from hypothesis import strategies as st


def kv(tokens):
    """Keys that tell which tokens they were computed from."""
    return torch.tensor(tokens, dtype=torch.float32).reshape(1, len(tokens), 1)


token_lists = st.lists(st.integers(0, 1), max_size=60).map(tuple)


@given(st.lists(token_lists, max_size=8), token_lists)
def test_what_is_found_is_a_beginning_of_what_was_asked(prompts, wanted):
    store = PrefixStore(150, partial=True)
    for prompt in prompts:
        store.add(prompt, kv(prompt))
        found = store.find(wanted)
        if found is not None:
            keys, length = found
            assert keys.flatten().tolist() == list(wanted[:length])


def test_the_longest_beginning_counts_at_any_length():
    store = PrefixStore(1000, partial=True)
    store.add(tuple(range(40)), kv(range(40)))
    assert store.find((*range(37), 99))[1] == 37
    assert store.find(tuple(range(40)))[1] == 40
    assert store.find(tuple(range(60)))[1] == 40
    assert store.find((5, 6, 7)) is None


def test_only_whole_prompts_without_partial():
    store = PrefixStore(1000, partial=False)
    store.add(tuple(range(40)), kv(range(40)))
    assert store.find(tuple(range(60))) is None
    assert store.find(tuple(range(40)))[1] == 40


def test_the_budget_holds_and_the_last_used_stay():
    store = PrefixStore(100, partial=True)
    first, second, third = ((index,) * 40 for index in range(3))
    store.add(first, kv(first))
    store.add(second, kv(second))
    store.find(first)
    store.add(third, kv(third))
    assert store.find(first)
    assert store.find(second) is None
    assert store.find(third)
    store.add((9,) * 101, kv((9,) * 101))
    assert store.find((9,) * 101) is None
    store.clear()
    assert store.find(first) is None
