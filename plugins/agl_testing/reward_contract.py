"""The contract of rewards."""

from __future__ import annotations

import math

import msgspec
import pytest

from agl_core.interfaces import AttemptRecord, RewardFunction
from agl_core.runner import NamedReward, Scorer
from agl_core.tracing import reason
from agl_core.types import Reward, RewardTarget, to_list
from agl_testing._guard import ContractSuite

__all__ = ["RewardContract"]


class RewardContract(ContractSuite):
    """Contract suite of rewards: subclass it and supply `reward` and `records`."""

    @pytest.fixture
    def reward(self) -> RewardFunction:
        """Return the reward function under test."""
        raise NotImplementedError("Supply the fixture reward")

    @pytest.fixture
    def records(self) -> list[AttemptRecord]:
        """Return at least two ended attempts with different outputs for it to score."""
        raise NotImplementedError("Supply the fixture records")

    async def test_it_scores_every_record_with_finite_numbers(
        self, reward: RewardFunction, records: list[AttemptRecord]
    ) -> None:
        for record in records:
            scored = await _score(reward, record)
            assert scored, "no reward came back"
            assert all(math.isfinite(given.value) for given in scored)

    async def test_its_reasons_are_short_enough_to_be_stored_whole(
        self, reward: RewardFunction, records: list[AttemptRecord]
    ) -> None:
        for record in records:
            for given in await _score(reward, record):
                assert not reason(given.why)[1], "a record would cut the reason"

    async def test_it_is_deterministic(
        self, reward: RewardFunction, records: list[AttemptRecord]
    ) -> None:
        first = [await _score(reward, record) for record in records]
        backwards = [await _score(reward, record) for record in reversed(records)]
        assert backwards[::-1] == first, "the score depends on the call or on the order of calls"

    async def test_it_distinguishes_records(
        self, reward: RewardFunction, records: list[AttemptRecord]
    ) -> None:
        totals = {
            tuple((given.channel, given.value) for given in await _score(reward, record))
            for record in records
        }
        assert len(totals) > 1, "every record got the same reward: nothing can be learned from it"

    async def test_it_aims_at_what_the_attempt_holds(
        self, reward: RewardFunction, records: list[AttemptRecord]
    ) -> None:
        for record in records:
            for given in await _score(reward, record):
                assert _exists(given.target, record), f"{given.target} is not in the attempt"

    async def test_it_leaves_task_output_and_spans_alone(
        self, reward: RewardFunction, records: list[AttemptRecord]
    ) -> None:
        for record in records:
            before = _encoded(record)
            await _score(reward, record)
            after = _encoded(record)
            assert after == before, "the reward changed what it scored"


def _encoded(record: AttemptRecord) -> bytes:
    return msgspec.json.encode((record.rollout, record.attempt, record.spans), enc_hook=to_list)


async def _score(reward: RewardFunction, record: AttemptRecord) -> list[Reward]:
    scorer = Scorer([NamedReward(name="reward", function=reward)])
    return await scorer(record, record.attempt.output)


def _exists(target: RewardTarget, record: AttemptRecord) -> bool:
    if target.call is not None:
        calls = [span for span in record.spans if span.call_id == target.call]
        counts = [len(span.call.choices) for span in calls if span.call is not None]
        return bool(calls) and (target.choice is None or target.choice < max(counts, default=0))
    if target.agent_run is not None:
        return any(span.agent_run_id == target.agent_run for span in record.spans)
    return target.agent is None or any(span.agent == target.agent for span in record.spans)
