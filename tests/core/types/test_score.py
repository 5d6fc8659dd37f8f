"""A number that says why it is what it is."""

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agl_core as agl
from agl_core.errors import RewardError
from agl_core.types import Score

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, st.text())
def test_a_score_is_its_number_and_keeps_its_reason(number, why):
    score = Score(number, why)

    assert (score, hash(score), json.dumps(score)) == (number, hash(number), json.dumps(number))
    assert (str(score), f"{score}", f"{score:.3f}") == (str(number), f"{number}", f"{number:.3f}")
    for same in (copy.copy(score), copy.deepcopy(score), pickle.loads(pickle.dumps(score))):
        assert (type(same), same, same.why) == (Score, number, why)


@given(NUMBERS, NUMBERS)
def test_what_is_calculated_with_scores_is_a_plain_float(one, other):
    for value in (Score(one, "a") + other, 0.5 * Score(one, "a"), -Score(one, "a")):
        assert type(value) is float
    assert sum([Score(one, "a"), Score(other, "b")]) == sum([one, other])
    assert max(Score(one, "a"), Score(other, "b")) == max(one, other)


def test_its_repr_shows_the_reason():
    assert repr(agl.Score(0.2, "the price is missing")) == "Score(0.2, 'the price is missing')"
    assert agl.Score(True).why == ""


@pytest.mark.parametrize(
    ("value", "why"),
    [(None, ""), ("0.5", ""), (math.nan, ""), (math.inf, ""), ([1], ""), (1, None), (1, b"x")],
)
def test_what_is_no_number_with_a_text_is_refused(value, why):
    with pytest.raises(RewardError, match="give a finite number and a text"):
        Score(value, why)
