from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import StoreError
from agl_core.store._codec import ROLLOUTS, SPANS, detached, encode, encode_span, json_value
from agl_core.types import Choice, ModelCall, Reward, Span, SpanKind, Task

TEXT = st.text(st.characters(), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def span(**fields):
    return Span(
        id="s", rollout_id="r", attempt_id="a", kind=SpanKind.LLM, **{"name": "n", **fields}
    )


@given(name=TEXT, attributes=st.dictionaries(TEXT, VALUES, max_size=3))
def test_every_text_and_number_comes_back_equal(name, attributes):
    written = span(name=name, attributes=attributes)
    assert SPANS.decode(encode_span(written)) == written


def test_token_ids_and_logprobs_come_back_equal_beside_awkward_text():
    choice = Choice(token_ids=[0, 151_642, 2**31], logprobs=[-0.1, -1e-300, 0.0], text="\ud800")
    call = ModelCall(
        id="c", rollout_id="r", attempt_id="a", agent="w", prompt_token_ids=[7], choices=[choice]
    )
    written = span(call=call)
    assert SPANS.decode(encode_span(written)) == written


def test_equal_records_have_equal_canonical_bytes_whatever_their_key_order():
    one, other = {"a": 1, "b": {"\ud800": 2, "d": 3}}, {"b": {"d": 3, "\ud800": 2}, "a": 1}
    assert encode(one, canonical=True) == encode(other, canonical=True)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (type("Count", (int,), {})(3), 3),
        (Fraction(1, 2), 0.5),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (type("Name", (str,), {})("x"), "x"),
        (complex(1, 2), "(1+2j)"),
    ],
)
def test_numbers_and_mappings_of_other_types_keep_their_value(value, read):
    stored = SPANS.decode(encode_span(span(attributes={"value": value})))
    assert stored.attributes == {"value": read}


def test_reward_from_a_numeric_library_is_read_as_a_float():
    stored = SPANS.decode(encode_span(span(reward=Reward(value=Fraction(1, 4)))))
    assert stored.reward == Reward(value=0.25)


def test_keys_that_are_no_text_become_text():
    assert SPANS.decode(encode_span(span(attributes={1: "a"}))).attributes == {"1": "a"}


def test_attributes_nested_without_end_are_kept_as_repr():
    endless: dict[str, object] = {"n": 1}
    endless["self"] = endless
    stored = SPANS.decode(encode_span(span(attributes=endless)))
    assert stored.attributes == {"n": "1", "self": repr(endless)}


def test_record_of_wrong_types_is_refused_by_name():
    with pytest.raises(StoreError, match=r"Span 'x' cannot be stored.*name"):
        detached(span(name=3), SPANS, "Span 'x'")
    with pytest.raises(StoreError, match="cannot be read"):
        SPANS.decode(encode({"id": "s"}))
    with pytest.raises(StoreError, match="cannot be read"):
        ROLLOUTS.decode(b"\xc1")


def test_output_is_kept_if_json_and_described_otherwise():
    assert json_value({"a": [1, "\ud800", 2**70]}) == {"a": [1, "\ud800", 2**70]}
    assert json_value(Task(id="t"))["id"] == "t"
    assert json_value([complex(1, 2)]) == "[(1+2j)]"
    endless: list[object] = []
    endless.append(endless)
    assert json_value(endless) == "[[...]]"
