"""Each rule of AdapterContract fails on an adapter that breaks it."""

import math
from itertools import count

import msgspec
import pytest
from agl_testing.adapter_contract import AdapterContract

from agl_core.adapters import TrajectoryAdapter
from agl_core.errors import CaptureError, MissingTokensError
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import AttemptStatus, Losses, Reward, SpanKind

replace = msgspec.structs.replace


class _Broken:
    """Adapts rightly; subclasses spoil the record before or the result after."""

    caught_by = (AssertionError, pytest.fail.Exception)

    def __init__(self, agents, policies):
        self.inner = TrajectoryAdapter(agents, policies=policies)

    def adapt(self, record):
        return self.after(self.inner.adapt(self.before(record)))

    def before(self, record):
        return record

    def after(self, adapted):
        for agent, paths in adapted.trajectories.items():
            adapted.trajectories[agent] = [self.path(path) for path in paths]
        return adapted

    def path(self, path):
        return path

    def check(self, seen):
        self.inner.check(seen)


def _respan(record, spans, **attempt):
    return AttemptRecord(
        rollout=record.rollout, attempt=replace(record.attempt, **attempt), spans=list(spans)
    )


def _map_rewards(record, change):
    return _respan(
        record,
        [
            replace(span, reward=change(span.reward)) if span.reward else span
            for span in record.spans
        ],
    )


class _GivesRewardsByPosition(_Broken):
    def before(self, record):
        calls = [span.call.id for span in record.spans if span.call]
        upcoming = iter(calls)
        return _map_rewards(
            record,
            lambda reward: replace(
                reward, target=replace(reward.target, call=next(upcoming, calls[-1]))
            ),
        )


class _TrainsContext(_Broken):
    def path(self, path):
        return replace(path, call_index=[max(index, 0) for index in path.call_index])


class _ShiftsTheMask(_Broken):
    def path(self, path):
        return replace(path, call_index=[*path.call_index[1:], -1])


class _KeepsOnlyTheLastCall(_Broken):
    def path(self, path):
        return replace(path, calls=path.calls[-1:])


class _GivesNothing(_Broken):
    def after(self, adapted):
        adapted.trajectories.clear()
        return adapted


class _MixesAgents(_Broken):
    def before(self, record):
        spans = [
            replace(
                span,
                agent="a" if span.agent else None,
                call=replace(span.call, agent="a") if span.call else None,
            )
            for span in record.spans
        ]
        return _respan(record, spans)


class _TrustsDelivery(_Broken):
    def before(self, record):
        clock = count(1)
        spans = [
            replace(
                span,
                sequence=0,
                call=replace(span.call, started_ns=next(clock)) if span.call else None,
            )
            for span in record.spans
        ]
        return _respan(record, spans)


class _TrainsEverybody(_Broken):
    def __init__(self, agents, policies):
        super().__init__(["*"], policies)


class _WantsTokensOfAll(_Broken):
    caught_by = MissingTokensError

    def before(self, record):
        for span in record.spans:
            if span.call and not span.call.prompt_token_ids:
                raise MissingTokensError("tokens are missing")
        return record


class _KnowsEverybody(_Broken):
    def check(self, seen):
        pass


class _Shrugs(_Broken):
    def adapt(self, record):
        try:
            return super().adapt(record)
        except CaptureError:
            return AdaptedAttempt(
                rollout_id=record.rollout.id,
                attempt_id=record.attempt.id,
                group_id="",
                task_id="",
                trajectories={},
                returns={},
                score=0.0,
                channels={},
                calls=0,
                seen=frozenset(),
                losses=Losses(),
            )


class _TrainsEveryTry(_Broken):
    def before(self, record):
        fresh = count()
        spans = [
            replace(span, call=replace(span.call, superseded=False, id=f"try{next(fresh)}"))
            if span.call and span.call.superseded
            else span
            for span in record.spans
        ]
        return _respan(record, spans)


class _TurnsBadRewardsIntoZero(_Broken):
    def before(self, record):
        return _map_rewards(
            record, lambda reward: replace(reward, value=0.0, target=type(reward.target)())
        )


class _DefaultsToZero(_Broken):
    def before(self, record):
        spans = list(record.spans)
        if not any(span.reward for span in spans):
            zero = {"id": "zero", "kind": SpanKind.REWARD, "reward": Reward(value=0.0)}
            spans.append(replace(spans[0], call_id=None, call=None, **zero))
        return _respan(record, spans)


class _TakesTheLastReward(_Broken):
    def before(self, record):
        rewards = [span for span in record.spans if span.reward]
        spans = [span for span in record.spans if not span.reward]
        return _respan(record, [*spans, *rewards[-1:]])


class _IgnoresFailure(_Broken):
    caught_by = CaptureError

    def before(self, record):
        return _respan(record, record.spans, status=AttemptStatus.SUCCEEDED)


_CASES = [
    ("interleaved_rewards_never_swap", _GivesRewardsByPosition, ()),
    ("edited_history_is_never_trained", _TrainsContext, ()),
    ("masks_align_token_by_token", _ShiftsTheMask, ()),
    ("masks_align_token_by_token", _GivesNothing, ()),
    ("every_choice_lies_on_exactly_one_path", _KeepsOnlyTheLastCall, ()),
    ("interleaved_agents_keep_their_own_paths", _MixesAgents, ()),
    ("delivery_order_changes_nothing", _TrustsDelivery, ()),
    ("delivery_order_changes_nothing", _GivesNothing, ()),
    ("only_the_selected_agents_are_trained", _TrainsEverybody, ()),
    ("untrained_agents_need_no_tokens", _WantsTokensOfAll, ()),
    ("an_unknown_agent_is_an_error", _KnowsEverybody, ()),
    ("a_trained_call_without_tokens_is_an_error", _Shrugs, ()),
    ("logprobs_that_do_not_match_are_an_error", _Shrugs, ()),
    *(
        ("a_wrong_join_is_an_error", _Shrugs, (wrong,))
        for wrong in ("twice", "stolen", "lost", "anonymous", "unsent", "failed")
    ),
    ("earlier_tries_are_dropped_and_counted", _TrainsEveryTry, ()),
    *(
        ("a_reward_that_is_no_number_is_an_error", _TurnsBadRewardsIntoZero, (value,))
        for value in (math.nan, math.inf, None, "1")
    ),
    *(
        ("a_reward_that_hits_nothing_is_an_error", _TurnsBadRewardsIntoZero, (unit,))
        for unit in ("call", "agent_run", "agent")
    ),
    ("no_reward_is_an_error", _DefaultsToZero, ()),
    ("rewards_for_one_target_add_up", _TakesTheLastReward, ()),
    ("a_failed_attempt_is_taken_without_rewards", _IgnoresFailure, ()),
]


@pytest.mark.parametrize(("rule", "broken", "arguments"), _CASES)
def test_a_broken_adapter_is_caught(rule, broken, arguments):
    test = getattr(AdapterContract(), f"test_{rule}")
    test(lambda agents, policies: TrajectoryAdapter(agents, policies=policies), *arguments)
    with pytest.raises(broken.caught_by):
        test(broken, *arguments)


def test_every_rule_has_its_broken_adapter():
    rules = {name[5:] for name in vars(AdapterContract) if name.startswith("test_")}
    assert rules == {rule for rule, _, _ in _CASES}
