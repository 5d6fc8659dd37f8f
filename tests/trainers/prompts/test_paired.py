"""Comparisons of candidates in pairs."""

import itertools
import math
import random

import pytest
from agl_prompts import Seen, difference_of, p_value, standings
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import ConfigError
from agl_core.types import Task


def row(scores):
    """Results of a candidate; None is a task that was lost."""
    return [
        Seen(
            task=Task(id=str(i)),
            score=score or 0.0,
            scores=() if score is None else (score,),
        )
        for i, score in enumerate(scores)
    ]


quarters = st.integers(-8, 8).map(lambda n: n / 4)


@given(st.lists(st.tuples(quarters, quarters), max_size=8))
def test_p_is_the_share_of_signs_that_reach_the_sum(pairs):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    differences = [b - a for a, b in pairs]
    signs = list(itertools.product((-1, 1), repeat=len(pairs)))
    sums = [sum(s * abs(d) for s, d in zip(each, differences, strict=True)) for each in signs]
    share = sum(each >= sum(differences) for each in sums) / len(signs)
    assert p_value(row(before), row(after)) == pytest.approx(share)


@given(st.lists(st.tuples(quarters, quarters), min_size=15, max_size=60))
def test_many_differences_are_drawn_close_to_the_normal_approximation(pairs):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    differences = [b - a for a, b in pairs if a != b]
    p = p_value(row(before), row(after))
    if len(differences) < 15 or len(set(map(abs, differences))) == 1:
        assert 0 < p <= 1
        return
    z = (sum(differences) - 0.125) / math.sqrt(sum(each**2 for each in differences))
    assert p == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)), abs=0.06)


def test_equal_candidates_reach_the_level_at_most_as_often_as_it_says():
    rng = random.Random(3)
    reached = 0
    for _ in range(400):
        before, after = ([float(rng.random() < 0.5) for _ in range(12)] for _ in range(2))
        reached += p_value(row(before), row(after)) <= 0.05
    assert reached / 400 <= 0.05


def test_lost_tasks_are_left_out_of_p():
    assert p_value(row([0.0, None, 0, 0]), row([1.0, 1.0, None, 1.0])) == 0.25
    assert p_value(row([None, 0.0]), row([1.0, None])) == 1.0


def test_equal_scores_have_p_one():
    assert p_value(row([0.5] * 6), row([0.5] * 6)) == 1.0


@given(st.lists(st.lists(quarters, min_size=4, max_size=4), min_size=2, max_size=6))
def test_standings_order_candidates_as_their_means_do(scores):
    places = standings([row(each) for each in scores])
    for (a, one), (b, other) in itertools.combinations(zip(places, scores, strict=True), 2):
        assert a - b == pytest.approx((sum(one) - sum(other)) / 4)


def test_losing_hard_tasks_is_no_advantage():
    easy_and_hard = [0.9, 0.9, 0.1, 0.1]
    worse = [0.8, 0.8, None, None]
    places = standings([row(easy_and_hard), row(worse)])
    assert places[0] > places[1]


def test_a_candidate_that_lost_everything_is_last():
    assert standings([row([0.0, 0.0]), row([None, None])]) == [0.0, -math.inf]


def by_task(scores):
    return {str(number): score for number, score in enumerate(scores)}


def test_a_difference_has_mean_interval_and_p():
    before, after = [0.0] * 10, [1.0] * 9 + [0.0]
    found = difference_of(by_task(before), by_task(after))
    assert (found.mean, found.n) == (0.9, 10)
    assert found.p == pytest.approx(2 * p_value(row(before), row(after)))
    assert 0 < found.low < 0.9 < found.high <= 1
    back = difference_of(by_task(after), by_task(before))
    assert (back.mean, back.p) == (-0.9, found.p)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


@given(st.lists(quarters, min_size=6, max_size=10, unique=True))
def test_the_interval_holds_what_the_test_does_not_reject(differences):
    found = difference_of(by_task([0.0] * len(differences)), by_task(differences))
    for shift, outside in (
        (found.low - 0.01, True),
        (found.high + 0.01, True),
        (found.mean, False),
    ):
        shifted = difference_of(by_task([shift] * len(differences)), by_task(differences))
        assert (shifted.p <= 0.05) == outside, (shift, shifted)


def test_many_tasks_have_about_the_interval_of_students_t():
    rng = random.Random(1)
    differences = [rng.gauss(0.3, 1.0) for _ in range(60)]
    found = difference_of(by_task([0.0] * 60), by_task(differences))
    mean = sum(differences) / 60
    deviation = math.sqrt(sum((each - mean) ** 2 for each in differences) / 59)
    half = 2.001 * deviation / math.sqrt(60)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=0.04)


def test_few_tasks_have_no_interval_and_equal_scores_no_difference():
    found = difference_of(by_task([0.0] * 5), by_task([1.0] * 5))
    assert (found.mean, found.low, found.high, found.p) == (1.0, None, None, 2 / 2**5)
    same = difference_of(by_task([0.5] * 8), by_task([0.5] * 8))
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)


def test_scores_of_other_tasks_are_not_compared():
    for after in ({}, {"0": 1.0, "x": 1.0}):
        with pytest.raises(ConfigError, match="same tasks"):
            difference_of(by_task([0.0, 1.0]), after)
