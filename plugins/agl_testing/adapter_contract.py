"""The contract of adapters: training data equals what was sampled and rewarded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from agl_core.errors import (
    CaptureError,
    ConfigError,
    MissingTokensError,
    RewardError,
    TokenMismatchError,
)
from agl_core.interfaces import AdaptedAttempt, Adapter
from agl_core.types import (
    AttemptStatus,
    Policy,
    Trajectory,
    Triplet,
    pack_floats,
    pack_ints,
)
from agl_testing._guard import ContractSuite
from agl_testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt

__all__ = ["AdapterContract"]

BuildAdapter = Callable[[Sequence[str], Sequence[Policy]], Adapter]
_POLICIES = (TRAINED, FROZEN)
_ROUNDS = 30


class AdapterContract(ContractSuite):
    """Contract suite of adapters: subclass it and supply `build_adapter`."""

    @pytest.fixture
    def build_adapter(self) -> BuildAdapter:
        """Return a callable that takes agent patterns and policies and returns the adapter."""
        raise NotImplementedError("Supply the fixture build_adapter")

    def test_interleaved_rewards_never_swap(self, build_adapter: BuildAdapter) -> None:
        for seed in range(_ROUNDS):
            random = Random(seed)  # noqa: S311 (a reproducible scenario)
            attempt = ScriptedAttempt()
            calls = {
                attempt.call(random.choice("abc"), _ids(random), _ids(random)): float(index)
                for index in range(6)
            }
            for call_id in random.sample(sorted(calls), k=6):
                attempt.reward(calls[call_id], call=call_id)
            adapted = build_adapter(["*"], _POLICIES).adapt(attempt.record())
            earned = {
                call_id: value
                for returned in adapted.returns.values()
                for call_id, value in returned.calls.items()
            }
            assert earned == calls
            assert {t.call_id: t.reward for t in _triplets(adapted)} == calls

    def test_edited_history_is_never_trained(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("a", [1, 2, 3], [10, 11, 12])
        attempt.call("a", [1, 2, 3, 10, 99, 12, 4], [20, 21])
        attempt.reward(1.0)
        adapted = build_adapter(["a"], _POLICIES).adapt(attempt.record())
        assert sorted(_trained_ids(path) for path in adapted.trajectories["a"]) == [
            [10, 11, 12],
            [20, 21],
        ]

    def test_masks_align_token_by_token(self, build_adapter: BuildAdapter) -> None:
        for seed in range(_ROUNDS):
            attempt = _random_conversations(seed)
            paths = list(_paths(build_adapter(["*"], _POLICIES).adapt(attempt.record())))
            assert paths
            for path in paths:
                _check_alignment(path)

    def test_every_choice_lies_on_exactly_one_path(self, build_adapter: BuildAdapter) -> None:
        for seed in range(_ROUNDS):
            attempt = _random_conversations(seed)
            adapted = build_adapter(["*"], _POLICIES).adapt(attempt.record())
            sampled = Counter(
                (span.call.id, choice.index)
                for span in attempt.spans
                if span.call is not None
                for choice in span.call.choices
            )
            assert Counter((t.call_id, t.choice) for t in _triplets(adapted)) == sampled

    def test_interleaved_agents_keep_their_own_paths(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("a", [1], [10])
        attempt.call("b", [1, 10, 2], [11])
        attempt.call("a", [1, 10, 2], [12])
        attempt.call("b", [1, 10, 2, 11, 3], [13])
        attempt.reward(1.0)
        adapted = build_adapter(["*"], _POLICIES).adapt(attempt.record())
        trained = {
            agent: [_trained_ids(path) for path in paths]
            for agent, paths in adapted.trajectories.items()
        }
        assert trained == {"a": [[10, 12]], "b": [[11, 13]]}

    def test_delivery_order_changes_nothing(self, build_adapter: BuildAdapter) -> None:
        attempt = _random_conversations(3)
        adapter = build_adapter(["*"], _POLICIES)
        expected = adapter.adapt(attempt.record()).trajectories
        assert expected
        attempt.spans.reverse()
        assert adapter.adapt(attempt.record()).trajectories == expected

    def test_only_the_selected_agents_are_trained(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("planner", [1], [10])
        kept = attempt.call("writer", [2], [20])
        attempt.call("@summarizer", [3], [30])
        attempt.call("writer", [4], [40], trainable=False)
        attempt.reward(1.0)
        adapted = build_adapter(["w*"], _POLICIES).adapt(attempt.record())
        assert [t.call_id for t in _triplets(adapted)] == [kept]
        assert adapted.seen >= {"planner", "writer"}

    def test_untrained_agents_need_no_tokens(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("planner", [], [], policy="elsewhere", trainable=False)
        attempt.call("writer", [2], [20])
        attempt.reward(1.0)
        adapted = build_adapter(["writer"], _POLICIES).adapt(attempt.record())
        assert set(adapted.trajectories) == {"writer"}

    def test_an_unknown_agent_is_an_error(self, build_adapter: BuildAdapter) -> None:
        with pytest.raises(ConfigError, match=r"writter.*writer"):
            build_adapter(["writter"], _POLICIES).check({"planner", "writer"})

    def test_a_trained_call_without_tokens_is_an_error(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("writer", [1], [], options=CallOptions(framework="some-framework"))
        attempt.reward(1.0)
        with pytest.raises(MissingTokensError, match=r"writer.*some-framework"):
            build_adapter(["writer"], _POLICIES).adapt(attempt.record())

    def test_logprobs_that_do_not_match_are_an_error(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        call_id = attempt.call("writer", [1], [10, 11])
        call = next(span.call for span in attempt.spans if span.call is not None)
        call.choices[0].logprobs.pop()
        attempt.reward(1.0)
        with pytest.raises(TokenMismatchError, match=call_id):
            build_adapter(["writer"], _POLICIES).adapt(attempt.record())

    @pytest.mark.parametrize("wrong", ["twice", "stolen", "lost", "anonymous", "unsent", "failed"])
    def test_a_wrong_join_is_an_error(self, build_adapter: BuildAdapter, wrong: str) -> None:
        attempt = ScriptedAttempt()
        attempt.call("writer", [1], [10])
        _break_join(attempt, wrong)
        attempt.reward(1.0)
        with pytest.raises(CaptureError):
            build_adapter(["writer"], _POLICIES).adapt(attempt.record())

    def test_earlier_tries_are_dropped_and_counted(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        last = attempt.call("writer", [1], [10], tries=2)
        attempt.call(
            "writer", [1], [66], id=last, superseded=True, options=CallOptions(traced=False)
        )
        attempt.reward(1.0)
        adapted = build_adapter(["writer"], _POLICIES).adapt(attempt.record())
        assert [t.response_ids.tolist() for t in _triplets(adapted)] == [[10]]
        assert sum(adapted.losses.counts.values()) == 1

    @pytest.mark.parametrize("value", [math.nan, math.inf, None, "1"])
    def test_a_reward_that_is_no_number_is_an_error(
        self, build_adapter: BuildAdapter, value: object
    ) -> None:
        attempt = ScriptedAttempt()
        attempt.call("writer", [1], [10])
        attempt.reward(value)
        with pytest.raises(RewardError, match="finite"):
            build_adapter(["writer"], _POLICIES).adapt(attempt.record())

    @pytest.mark.parametrize("unit", ["call", "agent_run", "agent"])
    def test_a_reward_that_hits_nothing_is_an_error(
        self, build_adapter: BuildAdapter, unit: str
    ) -> None:
        attempt = ScriptedAttempt()
        attempt.call("writer", [1], [10])
        attempt.reward(1.0, **{unit: "unknown"})
        with pytest.raises(RewardError, match="unknown"):
            build_adapter(["writer"], _POLICIES).adapt(attempt.record())

    def test_no_reward_is_an_error(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("writer", [1], [10])
        with pytest.raises(RewardError, match=r"[Nn]o reward"):
            build_adapter(["writer"], _POLICIES).adapt(attempt.record())

    def test_rewards_for_one_target_add_up(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        attempt.call("writer", [1], [10])
        attempt.reward(True)
        attempt.reward(0.5)
        attempt.reward(0.25, agent="writer")
        adapted = build_adapter(["writer"], _POLICIES).adapt(attempt.record())
        assert adapted.returns["writer"].value == pytest.approx(1.75)
        assert adapted.score == pytest.approx(1.75)

    def test_a_failed_attempt_is_taken_without_rewards(self, build_adapter: BuildAdapter) -> None:
        attempt = ScriptedAttempt()
        kept = attempt.call("writer", [1], [10])
        attempt.call("writer", [1, 10, 2], [11], complete=False)
        adapted = build_adapter(["writer"], _POLICIES).adapt(attempt.record(AttemptStatus.FAILED))
        assert [t.call_id for t in _triplets(adapted)] == [kept]
        assert adapted.losses.counts


def _break_join(attempt: ScriptedAttempt, wrong: str) -> None:
    """Make the two recorders contradict each other in one way."""
    if wrong == "twice":
        call_id = attempt.call("writer", [2], [20])
        attempt.call("writer", [2], [21], id=call_id, options=CallOptions(traced=False))
    elif wrong == "stolen":
        call_id = attempt.call("writer", [2], [20], options=CallOptions(traced=False))
        attempt.client_span("planner", call_id=call_id)
    elif wrong == "lost":
        attempt.call("writer", [2], [20], options=CallOptions(captured=False))
    elif wrong == "anonymous":
        attempt.call("", [2], [20])
    elif wrong == "unsent":
        attempt.client_span("writer", call_id=None)
    elif wrong == "failed":
        attempt.capture_error("two sends in one call scope")


def _random_conversations(seed: int) -> ScriptedAttempt:
    """Return interleaved agents whose calls continue, fork, repeat, or rewrite their history."""
    random = Random(seed)  # noqa: S311 (a reproducible scenario)
    attempt = ScriptedAttempt()
    histories: dict[str, list[list[int]]] = {"a": [[]], "b": [[]]}
    for _ in range(8):
        agent = random.choice("ab")
        prompt = [*random.choice(histories[agent]), *_ids(random)]
        if random.random() < 0.2:
            prompt[random.randrange(len(prompt))] = random.randrange(100)
        responses = [_ids(random) for _ in range(random.choice((1, 1, 1, 3)))]
        attempt.call(agent, prompt, *responses)
        histories[agent].append([*prompt, *random.choice(responses)])
    attempt.reward(1.0)
    return attempt


def _ids(random: Random) -> list[int]:
    return [random.randrange(100) for _ in range(random.randint(1, 5))]


def _check_alignment(path: Trajectory) -> None:
    length = len(path.token_ids)
    assert len(path.call_index) == length
    assert len(path.logprobs) == length
    owners = pack_ints([-1] * length)
    logprobs = pack_floats([0.0] * length)
    for index, triplet in enumerate(path.calls):
        start = len(triplet.prompt_ids)
        end = start + len(triplet.response_ids)
        assert path.token_ids[:end] == triplet.prompt_ids + triplet.response_ids
        owners[start:end] = pack_ints([index] * (end - start))
        logprobs[start:end] = triplet.logprobs
    assert path.call_index == owners
    assert path.logprobs == logprobs


def _trained_ids(path: Trajectory) -> list[int]:
    return [id_ for id_, index in zip(path.token_ids, path.call_index, strict=True) if index >= 0]


def _paths(adapted: AdaptedAttempt) -> Iterator[Trajectory]:
    for paths in adapted.trajectories.values():
        yield from paths


def _triplets(adapted: AdaptedAttempt) -> Iterator[Triplet]:
    for path in _paths(adapted):
        yield from path.calls
