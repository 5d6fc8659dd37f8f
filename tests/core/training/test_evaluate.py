import math

import pytest
from agl_testing.attempts import TRAINED, CallOptions, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter
from agl_core.config import EvalConfig
from agl_core.errors import ConfigError
from agl_core.training.evaluate import Outcome, estimate, is_better, outcomes, pass_at_k, summarize
from agl_core.types import AttemptStatus, Estimate, Failure, FailureKind


def evaluate(results, **config):
    return summarize(results, step=2, config=EvalConfig(**config))


def test_failures_stay_in_the_denominator():
    results = [
        *(Outcome(task_id=f"p{at}", score=1.0) for at in range(108)),
        *(Outcome(task_id=f"f{at}", score=0.0) for at in range(40)),
        *(Outcome(task_id=f"e{at}", failure=FailureKind.AGENT) for at in range(24)),
    ]
    evaluation = evaluate(results)
    assert evaluation.score.mean == pytest.approx(0.628, abs=5e-4)
    assert evaluation.score.n == 172
    assert evaluation.failed == {"agent": 24}
    assert evaluation.step == 2


def test_an_empty_set_is_an_error():
    with pytest.raises(ConfigError, match="empty"):
        evaluate([])


def test_a_score_that_is_not_finite_is_an_error():
    with pytest.raises(ConfigError, match="'t1'"):
        evaluate([Outcome(task_id="t1", score=math.nan)])


def test_tasks_count_alike_whatever_their_samples():
    results = [
        Outcome(task_id="a", score=1.0),
        Outcome(task_id="b", score=0.0),
        Outcome(task_id="b", score=0.0),
        Outcome(task_id="b", score=0.0),
    ]
    assert evaluate(results).score.mean == 0.5


def test_failures_may_count_below_zero():
    results = [
        Outcome(task_id="a", score=-3.0),
        Outcome(task_id="b", score=9.0, failure=FailureKind.LOST),
    ]
    evaluation = summarize(results, step=0, config=EvalConfig(), failure_score=-10.0)
    assert evaluation.score.mean == -6.5


def test_channels_have_estimates_of_their_own():
    """C6: a task without a reward on a channel says nothing of it."""
    results = [
        Outcome(task_id="a", score=1.0, channels={"main": 1.0, "style": 0.5}),
        Outcome(task_id="b", score=1.0, channels={"main": 1.0}),
        Outcome(task_id="c", failure=FailureKind.AGENT),
    ]
    channels = evaluate(results).channels
    assert channels["main"].mean == pytest.approx(2 / 3)
    assert channels["style"].mean == pytest.approx(0.5 / 2)
    assert channels["style"].n == 2


def test_pass_at_k_leaves_out_what_cannot_be_told():
    assert pass_at_k([(2, 0)], k=5) is None
    assert pass_at_k([(1, int(at < 50)) for at in range(164)], k=10) is None
    assert pass_at_k([(1, int(at < 50)) for at in range(164)], k=1).mean == pytest.approx(
        0.305, abs=5e-4
    )
    mixed = pass_at_k([(4, 1), (2, 2), (1, 1)], k=2)
    assert mixed.mean == pytest.approx((0.5 + 1.0) / 2)
    assert mixed.n == 2


@pytest.mark.parametrize(("counts", "k"), [([(1, 2)], 1), ([(1, -1)], 1), ([(1, 1)], 0)])
def test_impossible_counts_are_an_error(counts, k):
    with pytest.raises(ConfigError):
        pass_at_k(counts, k=k)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_grows_with_k_and_starts_at_the_share(counts):
    attempts, passed = counts
    values = [pass_at_k([counts], k=k).mean for k in range(1, attempts + 1)]
    assert values[0] == pytest.approx(passed / attempts)
    assert values == sorted(values)
    assert values[-1] == float(passed > 0)


def test_an_evaluation_reports_the_ks_it_can():
    results = [Outcome(task_id="a", score=score) for score in (1.0, 0.4)]
    evaluation = evaluate(results, samples=2, pass_at=[1, 2, 8], threshold=0.5)
    assert {k: value.mean for k, value in evaluation.pass_at_k.items()} == {1: 0.5, 2: 1.0}


def test_a_failure_never_passes():
    results = [Outcome(task_id="a", failure=FailureKind.AGENT)]
    evaluation = evaluate(results, pass_at=[1], threshold=-1.0)
    assert evaluation.pass_at_k[1].mean == 0.0


def test_shares_have_wilsons_interval():
    share = estimate([1.0] * 8 + [0.0] * 2)
    assert (share.low, share.high) == pytest.approx((0.4901, 0.9433), abs=1e-4)
    none = estimate([0.0] * 10)
    assert none.low == 0.0
    assert none.high == pytest.approx(0.2775, abs=1e-4)


def test_other_means_have_students_interval():
    result = estimate([1.0, 2.0, 3.0, 4.0])
    assert result.mean == 2.5
    assert result.high - 2.5 == pytest.approx(3.1824 * 1.29099 / 2, rel=2e-3)
    assert 2.5 - result.low == pytest.approx(result.high - 2.5)


def test_scores_between_0_and_1_keep_their_interval_there():
    result = estimate([0.99, 0.2, 0.9])
    assert 0.0 <= result.low <= result.mean <= result.high <= 1.0


def test_one_value_has_no_spread():
    assert estimate([0.4]) == Estimate(mean=0.4, low=0.4, high=0.4, n=1)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_the_interval_holds_the_mean(values):
    result = estimate(values)
    slack = 1e-9 * (1 + abs(result.mean))
    assert result.low <= result.mean + slack
    assert result.mean <= result.high + slack


def at(mean, n=10):
    return Estimate(mean=mean, low=mean, high=mean, n=n)


@pytest.mark.parametrize(
    ("candidate", "best", "better"),
    [
        (at(0.8), at(0.8), False),
        (at(math.nan), at(0.8), False),
        (at(0.79), at(0.8), False),
        (at(-3.0), at(-10.0), True),
        (at(0.0), None, True),
        (at(math.nan), None, False),
        (at(0.2, n=3), at(0.8, n=50), True),
    ],
)
def test_the_first_of_equal_scores_stays_the_best(candidate, best, better):
    assert is_better(candidate, best) is better


def test_outcomes_of_attempts():
    adapter = TrajectoryAdapter(["*"], policies=[TRAINED])
    good, unrewarded, broken, contradictory = (
        ScriptedAttempt(str(number), mode="val", task=f"t{number}") for number in range(4)
    )
    good.call("writer", [], [])
    good.reward(0.5, channel="style")
    contradictory.call("writer", [], [], options=CallOptions(traced=False))
    contradictory.client_span("planner", call_id=contradictory.spans[0].call.id)
    failure = Failure(kind=FailureKind.ENGINE, message="no answer")
    records = [
        good.record(),
        unrewarded.record(),
        broken.record(AttemptStatus.FAILED, failure=failure),
        contradictory.record(),
    ]
    assert outcomes(records, adapter) == [
        Outcome(task_id="t0", score=0.5, channels={"style": 0.5}),
        Outcome(task_id="t1", failure=FailureKind.REWARD),
        Outcome(task_id="t2", failure=FailureKind.ENGINE),
        Outcome(task_id="t3", failure=FailureKind.CAPTURE),
    ]
