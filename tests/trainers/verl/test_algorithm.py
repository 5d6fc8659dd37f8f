"""The algorithm ``verl``, and its credits on the way to rows."""

from __future__ import annotations

import pytest
from agl_testing.algorithm_contract import AlgorithmContract
from agl_testing.attempts import ScriptedAttempt
from agl_verl._algorithm import VerlAlgorithm, VerlAlgorithmOptions
from agl_verl._loss import PolicyLoss, PolicyLossOptions
from agl_verl.convert import rows_of, tensors_of

from agl_core.config.validation import validate
from agl_core.errors import ConfigError
from agl_core.types import AttemptStatus, Failure, FailureKind
from tests.trainers.verl.convert_cases import case_of


def algorithm(**options):
    return VerlAlgorithm(validate(VerlAlgorithmOptions, options, where="algorithm"))


class TestGRPO(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: VerlAlgorithm(VerlAlgorithmOptions())


class TestRLOO(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: algorithm(estimator="rloo", policy_loss="gspo", weighting="token")


class TestOPO(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: algorithm(estimator="opo", policy_loss="cispo", clip_high=0.3)

    @pytest.mark.xfail(reason="its baseline weighs returns by length", strict=True)
    def test_the_number_of_turns_changes_no_advantage(self, build_algorithm):
        super().test_the_number_of_turns_changes_no_advantage(build_algorithm)


class TestReinforcePlusPlus(AlgorithmContract):
    takes_baseline = False

    @pytest.fixture
    def build_algorithm(self):
        return lambda: algorithm(estimator="reinforce_plus_plus")


class TestReinforcePlusPlusBaseline(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: algorithm(estimator="reinforce_plus_plus_baseline")


class TestGdpo(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: algorithm(estimator="gdpo")


def test_a_run_that_names_no_engine_gets_verl():
    assert VerlAlgorithm.engine == "verl"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "gae"}, "'gae' needs a critic's value .*can be used: grpo, "),
        ({"policy_loss": "geo_mean"}, "'geo_mean' takes one weight per row.*used: vanilla, "),
        ({"policy_loss": "nil"}, "'nil' is not one of verl's"),
        ({"policy_loss": "sapo", "clip_low": 0.1}, "'sapo' does not read clip_low; it reads tau_"),
        ({"tau_pos": 2.0}, "'vanilla' does not read tau_pos; it reads clip_low"),
        ({"policy_loss": "gpg", "clip_high": 0.1}, "it reads no options"),
        ({"policy_loss": "dro"}, "needs dro_beta"),
        ({"policy_loss": "sapo", "loss_agg_mode": "token-mean"}, "seq-mean-token-mean alone"),
        ({"estimator": "rloo", "norm_adv_by_std_in_grpo": False}, "does not read norm_adv"),
        ({"gdpo_reward_weights": {"a": 2.0}}, "'grpo' does not read gdpo_reward_weights"),
        (
            {"estimator": "gdpo", "gdpo_reward_weights": {"a": float("nan")}},
            r"gdpo_reward_weights\.a is nan",
        ),
        ({"ratio": "token"}, "ratio"),
    ],
)
def test_a_wrong_option_says_what_is_right(options, message):
    with pytest.raises(ConfigError, match=message):
        algorithm(**options)


def test_only_options_that_were_set_go_to_the_loss():
    assert algorithm().loss_options == {"policy_loss": "vanilla"}
    options = algorithm(policy_loss="dro", dro_beta=0.5, weighting="token").loss_options
    assert options == {"policy_loss": "dro", "dro_beta": 0.5}
    assert PolicyLoss(PolicyLossOptions(**options)).actor["policy_loss"]["dro_beta"] == 0.5


def attempt(name, *, reward, agents="a", turns=1):
    script = ScriptedAttempt(name, group="g", task="g")
    history = [7]
    for turn in range(turns):
        for agent in agents:
            script.call(agent, history, [turn % 4, int(name) % 4])
            history = [*history, turn % 4, int(name) % 4, 9]
    if reward is not None:
        script.reward(reward)
    return script


def trained(records, **options):
    return case_of(records, algorithm(**options)).batch


def values(batch):
    """Call to its one advantage."""
    found = {}
    for call, advantage in zip(batch.calls, batch.advantages, strict=True):
        found.setdefault(batch.call_ids[call], set()).add(round(advantage, 4))
    assert all(len(each) == 1 for each in found.values())
    return {call: each.pop() for call, each in found.items()}


def test_interleaved_agents_are_credited_with_opposite_rewards():
    scripts = [attempt(name, reward=None, agents="ab", turns=2) for name in "12"]
    for script, sign in zip(scripts, (1.0, -1.0), strict=True):
        script.reward(sign, agent="a")
        script.reward(-sign, agent="b")
    batch = trained([script.record() for script in scripts], estimator="rloo")
    assert set(zip(batch.agents, values(batch).values(), strict=True)) == {
        ("a", 2.0),
        ("b", -2.0),
        ("a", -2.0),
        ("b", 2.0),
    }
    rows = rows_of(batch, level="merged", max_tokens=None, overlong="error")
    assert rows.by_agent == {"a": 2, "b": 2}
    assert len(rows.rows) == 2
    for row in rows.rows:
        signs = row.advantages[row.mask].reshape(-1, 4)
        assert (signs[:, :2] == -signs[:, 2:]).all()


def test_one_call_weighs_as_much_as_forty():
    records = [attempt("1", reward=1.0).record(), attempt("2", reward=0.0, turns=40).record()]
    batch = trained(records, estimator="rloo")
    shares = {1.0: 0.0, -1.0: 0.0}
    for advantage, weight in zip(batch.advantages, batch.weights, strict=True):
        shares[advantage] += weight
    assert shares == pytest.approx({1.0: 1.0, -1.0: 1.0}, rel=1e-5)
    rows = rows_of(batch, level="merged", max_tokens=None, overlong="error")
    tensors = tensors_of(rows.rows, multiple=1, pad_id=0, agg_mode="token-mean")
    scaled = [float(part.sum()) for part in tensors["rollout_is_weights"].unbind()]
    assert scaled == pytest.approx([41.0, 41.0], rel=1e-4)


def test_the_baseline_knows_the_attempt_whose_late_turn_is_too_long():
    records = [
        attempt("1", reward=1.0).record(),
        attempt("2", reward=0.0, turns=3).record(),
    ]
    batch = trained(records, estimator="rloo")
    whole = rows_of(batch, level="merged", max_tokens=None, overlong="drop")
    rows = rows_of(batch, level="merged", max_tokens=6, overlong="drop")
    assert rows.lost == {"a": {"row_too_long": 1}}
    assert whole.weight == pytest.approx(2.0)
    assert rows.weight == pytest.approx(1.0 + 2 / 3)
    first = next(row for row in rows.rows if row.advantages[0] > 0)
    assert first.advantages.tolist() == [1.0, 1.0]
    second = next(row for row in rows.rows if row is not first)
    assert set(second.advantages[second.mask].tolist()) == {-1.0}


def test_calls_that_share_a_prompt_both_train():
    scripts = [ScriptedAttempt(name, group="g", task="g") for name in "12"]
    for script, reward in zip(scripts, (1.0, 0.0), strict=True):
        script.call("a", [7, 8], [1])
        script.call("a", [7, 8], [1])
        script.reward(reward)
    batch = trained([script.record() for script in scripts], estimator="rloo")
    rows = rows_of(batch, level="merged", max_tokens=None, overlong="error").rows
    assert sorted(float(row.advantages[0]) for row in rows) == [-1.0, -1.0, 1.0, 1.0]


def test_boolean_rewards_are_rewards():
    records = [attempt("1", reward=True).record(), attempt("2", reward=False).record()]
    assert set(values(trained(records, estimator="rloo")).values()) == {1.0, -1.0}


def test_a_failed_rollout_is_in_no_baseline():
    failure = Failure(kind=FailureKind.AGENT, message="it broke")
    records = [
        attempt("1", reward=1.0).record(),
        attempt("2", reward=0.0).record(),
        attempt("3", reward=None).record(AttemptStatus.FAILED, failure=failure),
    ]
    found = values(trained(records, estimator="rloo"))
    assert found == {"call_at_1_0": 1.0, "call_at_2_0": -1.0}
