import pytest
from agl_rewards import ExactMatch, Numeric, Regex
from agl_testing.attempts import ScriptedAttempt
from agl_testing.reward_contract import RewardContract

from agl_core.types import Reward, RewardTarget


def make_record(name, output):
    script = ScriptedAttempt(name, expected="7")
    script.call("writer", [1, 2], [3])
    return script.record(output=output)


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
