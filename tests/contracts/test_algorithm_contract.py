"""Each rule of AlgorithmContract fails on an algorithm that breaks it."""

import random

import msgspec
import pytest
from agl_testing.algorithm_contract import AlgorithmContract

from agl_core.training.algorithms import RLOO, RLOOOptions

replace = msgspec.structs.replace


class _BestOnly(RLOO):
    """Only the best attempt has an advantage: by how much it raises the best return."""

    def __init__(self):
        super().__init__(RLOOOptions())

    def credit(self, group):
        returns = sorted(returned.value for returned in group.returns)
        if not returns:
            return super().credit(group)
        second, best = ([returns[-1], *returns] if len(returns) == 1 else returns)[-2:]
        values = {
            triplet.call_id: best - second if returned.value == best else 0.0
            for returned, paths in zip(group.returns, group.trajectories, strict=True)
            for path in paths
            for triplet in path.calls
        }
        return [
            replace(credit, advantages=[values[credit.call_id]] * len(credit.advantages))
            for credit in super().credit(group)
        ]


class TestBestOnly(AlgorithmContract):
    goal = 0.4

    @pytest.fixture
    def build_algorithm(self):
        return _BestOnly


def test_a_goal_that_the_bandit_starts_with_is_refused():
    class Easy(AlgorithmContract):
        goal = 0.25

    with pytest.raises(AssertionError, match="starts with"):
        Easy().test_it_learns_a_bandit(_BestOnly)


def test_a_failed_assertion_shows_its_values():
    with pytest.raises(AssertionError, match=r"assert 0\.44\d+ > 0\.9"):
        AlgorithmContract().test_it_learns_a_bandit(_BestOnly)


class _Broken(RLOO):
    def __init__(self):
        super().__init__(RLOOOptions())

    def credit(self, group):
        return [self.spoil(credit) for credit in super().credit(group)]

    def spoil(self, credit):
        return credit

    @staticmethod
    def scale(credit, factor):
        return replace(credit, advantages=[factor * value for value in credit.advantages])


class _PullsTheWrongWay(_Broken):
    def spoil(self, credit):
        return self.scale(credit, -1.0)


class _DecaysInSecret(_Broken):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def spoil(self, credit):
        self.factor *= 0.99
        return self.scale(credit, self.factor)


class _AcceptsNothing(_Broken):
    def credit(self, group):
        return super().credit(group) if group.returns else []


class _TakesReturns(_Broken):
    def credit(self, group):
        values = {
            triplet.call_id: returned.value
            for returned, paths in zip(group.returns, group.trajectories, strict=True)
            for path in paths
            for triplet in path.calls
        }
        return [
            replace(credit, advantages=[values[credit.call_id]] * len(credit.advantages))
            for credit in super().credit(group)
        ]


class _DropsATokens(_Broken):
    def spoil(self, credit):
        return replace(credit, weights=credit.weights[1:])


class _CountsTurns(_Broken):
    def credit(self, group):
        credits_ = super().credit(group)
        return [self.scale(credit, 1 / len(credits_)) for credit in credits_]


class _TrainsSiblings(_Broken):
    def credit(self, group):
        paths = [
            [
                replace(path, calls=[replace(triplet, continued=True) for triplet in path.calls])
                for path in attempt
            ]
            for attempt in group.trajectories
        ]
        return super().credit(replace(group, trajectories=paths))


class _Rolls(_Broken):
    def spoil(self, credit):
        return self.scale(credit, 1 + random.random())


class _CreditsNothing(_Broken):
    def credit(self, group):
        return []


class _HasNoLoss(_Broken):
    loss = ""


_CASES = [
    ("it_learns_a_bandit", _PullsTheWrongWay),
    ("better_attempts_have_greater_advantages", _PullsTheWrongWay),
    ("it_resumes_exactly", _DecaysInSecret),
    ("an_empty_group_is_an_error", _AcceptsNothing),
    ("a_group_of_one_has_no_advantage", _TakesReturns),
    ("equal_returns_have_no_advantage", _TakesReturns),
    ("a_constant_added_to_all_rewards", _TakesReturns),
    ("credits_align_with_the_sampled_tokens", _DropsATokens),
    ("the_number_of_turns_changes_no_advantage", _CountsTurns),
    ("siblings_are_trained_only_where_named", _TrainsSiblings),
    ("equal_groups_get_equal_credits", _Rolls),
    ("equal_returns_have_no_advantage", _CreditsNothing),
    ("a_constant_added_to_all_rewards", _CreditsNothing),
    ("equal_groups_get_equal_credits", _CreditsNothing),
    ("it_names_a_loss_and_plain_options", _HasNoLoss),
]


@pytest.mark.parametrize(("rule", "broken"), _CASES)
def test_a_broken_algorithm_is_caught(rule, broken):
    test = getattr(AlgorithmContract(), f"test_{rule}")
    test(lambda: RLOO(RLOOOptions()))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(broken)


def test_every_rule_has_its_broken_algorithm():
    rules = {name[5:] for name in vars(AlgorithmContract) if name.startswith("test_")}
    assert rules == {rule for rule, _ in _CASES}


def test_an_algorithm_cannot_pass_for_one_without_baseline():
    class Claims(AlgorithmContract):
        takes_baseline = False

    with pytest.raises(AssertionError):
        Claims().test_a_constant_added_to_all_rewards(lambda: RLOO(RLOOOptions()))
