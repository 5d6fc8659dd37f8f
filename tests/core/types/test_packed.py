from __future__ import annotations

import copy
import pickle
from array import array
from fractions import Fraction

import msgspec
import pytest
from agl_testing.bandit import make_triplet
from hypothesis import given
from hypothesis import strategies as st

from agl_core.types import (
    Choice,
    ModelCall,
    Span,
    SpanKind,
    Trajectory,
    from_list,
    pack_floats,
    pack_ints,
    to_list,
)
from agl_core.types.json_text import json_text, json_value

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
LOGPROBS = st.lists(st.floats(allow_nan=False), max_size=6)


def span(prompt, ids, logprobs):
    choice = Choice(token_ids=ids, logprobs=logprobs)
    call = ModelCall(
        id="c",
        rollout_id="r",
        attempt_id="a",
        agent="w",
        prompt_token_ids=prompt,
        choices=[choice],
    )
    return Span(id="s", rollout_id="r", attempt_id="a", kind=SpanKind.LLM, name="n", call=call)


@given(prompt=IDS, ids=IDS, logprobs=LOGPROBS)
def test_lists_are_packed_and_every_copy_of_a_span_is_equal(prompt, ids, logprobs):
    made = span(prompt, tuple(ids), logprobs)
    assert made.call.prompt_token_ids == array("i", prompt)
    assert made.call.choices[0].token_ids == array("i", ids)
    assert made.call.choices[0].logprobs == array("d", logprobs)
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert msgspec.structs.replace(made, name="n") == made
    assert json_value(json_text(made))["call"]["prompt_token_ids"] == prompt
    assert msgspec.convert(json_value(json_text(made)), Span, dec_hook=from_list) == made


def test_an_array_of_the_right_kind_is_kept_and_another_is_packed_anew():
    ids, logprobs = array("i", [1]), array("d", [0.5])
    choice = Choice(token_ids=ids, logprobs=logprobs)
    assert choice.token_ids is ids
    assert choice.logprobs is logprobs
    assert Choice(token_ids=array("q", [1]), logprobs=array("f", [0.5])) == choice


def test_paths_are_packed_too():
    triplet = make_triplet("c", [5, 6])
    path = Trajectory(
        rollout_id="r",
        attempt_id="a",
        group_id="g",
        task_id="t",
        agent="w",
        policy="p",
        token_ids=[1, 5],
        call_index=[-1, 0],
        logprobs=[0, -1],
        calls=[triplet],
    )
    assert triplet.response_ids == array("i", [5, 6])
    assert (path.token_ids, path.call_index) == (array("i", [1, 5]), array("i", [-1, 0]))
    assert path.logprobs == array("d", [0.0, -1.0])


def test_other_numbers_than_the_field_holds_are_refused():
    assert pack_ints([True, 2]) == array("i", [1, 2])
    assert pack_floats([1, Fraction(1, 2)]) == array("d", [1.0, 0.5])
    for wrong in ([2**31], [-(2**31) - 1], [0.5], ["1"], [None]):
        with pytest.raises(ValueError, match="cannot be packed as 32-bit integers"):
            Choice(token_ids=wrong)
    for wrong in (["1"], [None], [10**400]):
        with pytest.raises(ValueError, match="cannot be packed as floats"):
            Choice(logprobs=wrong)


def test_hooks_leave_other_types_to_msgspec():
    with pytest.raises(NotImplementedError):
        to_list(object())
    with pytest.raises(NotImplementedError):
        from_list(complex, 1)
    with pytest.raises(msgspec.ValidationError, match="array"):
        msgspec.convert({"token_ids": 3}, Choice, dec_hook=from_list)
