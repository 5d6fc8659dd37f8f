"""The contract of policy-gradient algorithms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from agl_core.errors import TrainingError
from agl_core.interfaces import Algorithm
from agl_core.types import AgentReturn, CallCredit, TrajectoryGroup, Triplet
from agl_testing._guard import ContractSuite
from agl_testing.bandit import Bandit, make_group, make_triplet

__all__ = ["AlgorithmContract"]

BuildAlgorithm = Callable[[], Algorithm]
_STEPS = 60


class AlgorithmContract(ContractSuite):
    """Contract suite of algorithms: subclass it and supply `build_algorithm`."""

    takes_baseline: ClassVar[bool] = True
    """False for an algorithm whose advantage is the plain return, which the suite then checks."""
    goal: ClassVar[float] = 0.9
    """Probability of the best arm that 60 steps of training the bandit must exceed; it starts at
    0.25. Lower it for an algorithm whose gradient vanishes once one attempt of a group is good.
    """

    @pytest.fixture
    def build_algorithm(self) -> BuildAlgorithm:
        """Return a callable that returns a new algorithm with its default options."""
        raise NotImplementedError("Supply the fixture build_algorithm")

    def test_it_learns_a_bandit(self, build_algorithm: BuildAlgorithm) -> None:
        bandit = Bandit(seed=7)
        assert self.goal > bandit.probabilities[bandit.best], "goal is what the bandit starts with"
        bandit.train(build_algorithm(), steps=_STEPS)
        assert bandit.probabilities[bandit.best] > self.goal

    def test_it_resumes_exactly(self, build_algorithm: BuildAlgorithm) -> None:
        whole = Bandit(seed=3)
        whole.train(build_algorithm(), steps=_STEPS)
        cut = Bandit(seed=3)
        cut.train(build_algorithm(), steps=_STEPS // 2)
        cut.train(build_algorithm(), steps=_STEPS - _STEPS // 2)
        assert cut.logits == whole.logits

    def test_an_empty_group_is_an_error(self, build_algorithm: BuildAlgorithm) -> None:
        with pytest.raises(TrainingError):
            build_algorithm().credit(make_group([], []))

    def test_a_group_of_one_has_no_advantage(self, build_algorithm: BuildAlgorithm) -> None:
        group = make_group([_earned(3.0)], [[make_triplet("a", [1, 2])]])
        (credit,) = build_algorithm().credit(group)
        assert credit.advantages == [0.0 if self.takes_baseline else 3.0] * 2

    def test_equal_returns_have_no_advantage(self, build_algorithm: BuildAlgorithm) -> None:
        credits_ = build_algorithm().credit(_group([0.1, 0.1, 0.1]))
        assert len(credits_) == 3
        expected = 0.0 if self.takes_baseline else 0.1
        assert all(set(credit.advantages) == {expected} for credit in credits_)

    def test_a_constant_added_to_all_rewards(self, build_algorithm: BuildAlgorithm) -> None:
        algorithm = build_algorithm()
        plain = _advantages(algorithm.credit(_group([0.0, 1.0, 0.5])))
        shifted = _advantages(algorithm.credit(_group([5.0, 6.0, 5.5])))
        assert plain
        shift = 0.0 if self.takes_baseline else 5.0
        assert shifted == pytest.approx({call: value + shift for call, value in plain.items()})

    def test_better_attempts_have_greater_advantages(self, build_algorithm: BuildAlgorithm) -> None:
        values = _advantages(build_algorithm().credit(_group([0.0, 1.0, 0.5])))
        assert values["call_0"] <= values["call_2"] <= values["call_1"]
        assert values["call_0"] < values["call_1"]

    def test_credits_align_with_the_sampled_tokens(self, build_algorithm: BuildAlgorithm) -> None:
        calls = [
            [make_triplet("a", [1, 2, 3]), make_triplet("b", [4], ordinal=1)],
            [make_triplet("c", [5, 6])],
        ]
        credits_ = build_algorithm().credit(make_group([_earned(0.0), _earned(1.0)], calls))
        assert {credit.call_id: len(credit.advantages) for credit in credits_} == {
            "a": 3,
            "b": 1,
            "c": 2,
        }
        for credit in credits_:
            assert len(credit.weights) == len(credit.advantages)
            assert all(math.isfinite(value) for value in credit.advantages)
            assert all(weight >= 0 for weight in credit.weights)

    def test_the_number_of_turns_changes_no_advantage(
        self, build_algorithm: BuildAlgorithm
    ) -> None:
        algorithm = build_algorithm()
        once = _advantages(algorithm.credit(_group([0.0, 1.0])))
        turns = [make_triplet(f"turn_{index}", [1, 2], ordinal=index) for index in range(5)]
        many = _advantages(
            algorithm.credit(
                make_group([_earned(0.0), _earned(1.0)], [turns, [make_triplet("call_1", [1])]])
            )
        )
        assert many["call_1"] == once["call_1"]
        assert {many[triplet.call_id] for triplet in turns} == {once["call_0"]}

    def test_siblings_are_trained_only_where_named(self, build_algorithm: BuildAlgorithm) -> None:
        def group(choices: dict[str, dict[int, float]]) -> TrajectoryGroup:
            siblings = [
                make_triplet("call_0", [index], choice=index, continued=index == 0)
                for index in range(3)
            ]
            returns = [_earned(1.0, choices=choices), _earned(0.0)]
            return make_group(returns, [siblings, [make_triplet("call_1", [9])]])

        algorithm = build_algorithm()
        silent = algorithm.credit(group({}))
        named = algorithm.credit(group({"call_0": {1: 1.0, 2: 0.0}}))
        assert {(c.call_id, c.choice) for c in silent} == {("call_0", 0), ("call_1", 0)}
        assert {(c.call_id, c.choice) for c in named} == {
            ("call_0", 0),
            ("call_0", 1),
            ("call_0", 2),
            ("call_1", 0),
        }

    def test_equal_groups_get_equal_credits(self, build_algorithm: BuildAlgorithm) -> None:
        algorithm = build_algorithm()
        first = algorithm.credit(_group([0.0, 1.0]))
        assert first
        assert algorithm.credit(_group([0.0, 1.0])) == first

    def test_it_names_a_loss_and_plain_options(self, build_algorithm: BuildAlgorithm) -> None:
        algorithm = build_algorithm()
        assert algorithm.loss
        assert json.loads(json.dumps(dict(algorithm.loss_options))) == dict(algorithm.loss_options)


def _earned(value: float, *, choices: dict[str, dict[int, float]] | None = None) -> AgentReturn:
    return AgentReturn(
        rollout_id="ro", attempt_id="at", agent="agent", value=value, choices=choices or {}
    )


def _group(returns: Sequence[float]) -> TrajectoryGroup:
    calls: list[list[Triplet]] = [
        [make_triplet(f"call_{index}", [1, 2])] for index in range(len(returns))
    ]
    return make_group([_earned(value) for value in returns], calls)


def _advantages(credits_: Sequence[CallCredit]) -> dict[str, float]:
    """Return the advantage of each call, which all its tokens share."""
    assert all(len(set(credit.advantages)) == 1 for credit in credits_)
    return {credit.call_id: credit.advantages[0] for credit in credits_}
