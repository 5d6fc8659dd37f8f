import msgspec
import pytest

from agl_core.interfaces import AttemptRecord
from agl_core.rewards import ExactMatch, Numeric, Regex
from agl_core.testing.attempts import ScriptedAttempt
from agl_core.testing.reward_contract import RewardContract
from agl_core.types import Reward, RewardTarget, Task


def make_record(name, output):
    script = ScriptedAttempt(name)
    script.call("writer", [1, 2], [3])
    record = script.record()
    return AttemptRecord(
        rollout=msgspec.structs.replace(record.rollout, task=Task(id=name, expected="7")),
        attempt=msgspec.structs.replace(record.attempt, output=output),
        spans=record.spans,
    )


class Suite(RewardContract):
    @pytest.fixture
    def records(self):
        return [make_record("1", "it is 7"), make_record("2", "8"), make_record("3", "7")]


class TestExactMatch(Suite):
    @pytest.fixture
    def reward(self):
        return ExactMatch()


class TestNumeric(Suite):
    @pytest.fixture
    def reward(self):
        return Numeric()


class TestRegex(Suite):
    @pytest.fixture
    def reward(self):
        return Regex(pattern=r"^(\d)$", group=1)


class TestAimedAtACall(Suite):
    @pytest.fixture
    def reward(self):
        def judge(task, output, attempt):
            (call,) = {span.call_id for span in attempt.spans}
            target = RewardTarget(call=call)
            return Reward(value=float(len(output)), target=target)

        return judge
