from __future__ import annotations

from math import fsum, inf

import pytest
from agl_gepa._scores import refused, scored
from agl_prompts import Seen
from hypothesis import given
from hypothesis import strategies as st

from agl_core.types import FailureKind, Task


def results(*scores):
    """Results with a score each; None was lost."""
    return [
        Seen(task=Task(id=str(at)), score=0.0, failure=FailureKind.LOST)
        if score is None
        else Seen(task=Task(id=str(at)), score=score, scores=(score,))
        for at, score in enumerate(scores)
    ]


def alone(*scores):
    return scored(results(*scores), None, rollouts=len(scores))


def compared(scores, other):
    return scored(results(*scores), other, rollouts=len(scores))


def test_without_losses_scores_are_what_ran():
    parent = alone(0.1, 0.9)
    assert parent.scores == [0.1, 0.9]
    assert compared((0.3, 0.2), parent).scores == [0.3, 0.2]


def test_a_lost_easy_task_makes_a_child_no_worse():
    parent = alone(0.375, 1.0, 0.375)
    assert compared((0.5, None, 0.5), parent).scores == [0.5, 1.125, 0.5]


def test_a_task_that_the_parent_lost_makes_a_child_no_better():
    parent = alone(0.25, None, 0.25)
    child = compared((0.25, 1.0, 0.25), parent)
    assert child.scores == parent.scores


def test_a_child_with_no_task_in_common_has_the_worst_score():
    assert compared((None, 1.0), alone(1.0, None)).scores == [-inf, -inf]


def test_only_results_that_were_not_all_lost_can_be_reflected_on():
    assert alone(None, None).trajectories == []
    assert len(alone(None, 1.0).trajectories) == 2
    assert refused(2).trajectories == []
    assert refused(2).num_metric_calls == 0


SCORES = st.lists(
    st.tuples(*[st.one_of(st.none(), st.integers(0, 8).map(lambda n: n / 8))] * 2), min_size=1
)


@given(SCORES)
def test_sums_differ_as_the_tasks_that_both_have(pairs):
    common = [mine - its for mine, its in pairs if mine is not None and its is not None]
    parent = alone(*(its for _, its in pairs))
    child = compared(tuple(mine for mine, _ in pairs), parent)
    if not parent.trajectories:
        return
    if not common:
        assert fsum(child.scores) == -inf
        return
    expected = len(pairs) * fsum(common) / len(common)
    assert fsum(child.scores) - fsum(parent.scores) == pytest.approx(expected)
