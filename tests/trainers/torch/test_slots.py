"""Keys and values by slot: what they keep, and how much room they take."""

from __future__ import annotations

import pytest
import torch
from agl_torch.serving._kv import SlotCache
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config

CONFIG = Qwen2Config(
    num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=1, hidden_size=1
)


def cache(limit):
    return SlotCache(CONFIG, limit=limit, dtype=torch.float32, device=torch.device("cpu"))


def test_many_short_and_then_one_long_stay_within_the_limit():
    slots = cache(128_000)
    slots.reserve(64, 2000, keep=0)
    assert slots.slots * slots.length <= 128_000
    mark = torch.arange(2000.0)[None, None, None, :, None].expand(1, 2, 1, 2000, 1)
    slots.write(0, mark)
    slots.reserve(1, 32_000, keep=1)
    assert slots.slots * slots.length <= 128_000
    assert slots.length >= 32_000
    assert torch.equal(slots.read(0, 2000), mark)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 600)), min_size=1, max_size=8),
    st.integers(1, 12_000),
)
def test_room_is_what_is_asked_for_and_little_more(asked, limit):
    slots = cache(limit)
    for count, length in asked:
        slots.reserve(count, length, keep=0)
        assert slots.slots >= count
        assert slots.length >= length
        most = max(count * length for count, length in asked)
        assert slots.slots * slots.length <= max(limit, most, 128 * -(-most // 128))


@pytest.mark.parametrize("limit", [512, 100_000])
def test_a_growing_answer_is_not_moved_at_every_token(limit):
    slots = cache(limit)
    moves, held = 0, None
    for length in range(1, 2001):
        slots.reserve(1, length, keep=slots.slots)
        moves += slots._kv is not held
        held = slots._kv
    assert moves < 20
