"""P1: policies with a share, and policies that an endpoint serves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.config.loader import load_config, resolve, save_config
from agl_core.config.policies import capture_settings, resolve_policies, trained_agents
from agl_core.errors import ConfigError
from agl_core.types import Rollout, Task, any_matches
from agl_core.types.rollout import CAPTURE

ENDPOINT = {"base_url": "http://127.0.0.1:1/v1", "model": "strong"}


def resolved(sections, *, agents=()):
    config = resolve({"model": "m", "agents": list(agents), "policies": sections})
    return config, resolve_policies(config, training=True)


def test_an_opponent_of_any_program_needs_four_keys():
    """The policies of a run without [policies] stay, and the opponent plays all their agents."""
    config, found = resolved(
        {"opponent": {**ENDPOINT, "api_key_env": "KEY", "share": 0.2}}, agents=["writer"]
    )
    assert [policy.name for policy in found] == ["trained", "frozen", "opponent"]
    opponent = found[-1]
    assert (opponent.agents, opponent.share) == (("*",), 0.2)
    assert (opponent.base_url, opponent.model) == (ENDPOINT["base_url"], "strong")
    assert not opponent.trainable
    assert trained_agents(config, found) == ["writer"]


def test_an_endpoint_gets_no_model_of_the_run():
    with pytest.raises(ConfigError, match=r"policies\.judge\.model"):
        resolved(
            {
                "w": {"agents": ["writer"], "trainable": True},
                "judge": {"agents": ["judge"], "base_url": ENDPOINT["base_url"]},
            }
        )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"share": -0.1}, "share"),
        ({"share": 1.1}, "share"),
        ({"share": 0.5, "trainable": True}, "base_url or share is never trained"),
        ({"agents": ["a"], **ENDPOINT, "trainable": True}, "base_url or share is never trained"),
        ({"share": 0.5, "api_key_env": "KEY"}, "api_key_env has no effect without base_url"),
        ({"share": 0.5, "base_url": "localhost:80"}, "base_url"),
        ({"model": "x"}, "agents"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(section, message):
    with pytest.raises(ConfigError, match=message):
        resolved({"w": {"agents": ["writer"], "trainable": True}, "foe": section})


def test_the_policies_of_a_stored_run_can_be_read_back(tmp_path):
    sections = {
        "w": {"agents": ["writer"], "trainable": True},
        "rest": {"agents": ["*"]},
        "judge": {"agents": ["judge"], **ENDPOINT},
        "foe": {**ENDPOINT, "api_key_env": "KEY", "share": 0.5},
    }
    config, _ = resolved(sections)
    assert load_config(save_config(config, tmp_path)).policies == config.policies


@pytest.mark.parametrize("agents", [["judge"], ["judge*"], ["w"], ["other"], ["writer", "wirter"]])
def test_a_share_of_agents_that_no_trainable_policy_serves_is_refused(agents):
    with pytest.raises(ConfigError, match=r"'foe' has a share of agents that no trainable"):
        resolved(
            {
                "judge": {"agents": ["judge*", "w"]},
                "w": {"agents": ["writer", "w"], "trainable": True},
                "foe": {"agents": agents, "share": 0.5},
            }
        )


@pytest.mark.parametrize("agents", [["writer_1"], ["writer*"], ["w*"], ["*"], ["*_1"]])
def test_a_share_of_agents_that_a_trainable_policy_serves_passes(agents):
    resolved(
        {
            "judge": {"agents": ["judge*"]},
            "w": {"agents": ["writer*"], "trainable": True},
            "rest": {"agents": ["*"]},
            "foe": {"agents": agents, "share": 0.5},
        }
    )


@pytest.mark.parametrize(
    ("one", "two"), [(["*"], ["writer"]), (["writer"], ["w*", "x"]), (["wr*"], ["*er"])]
)
def test_shares_above_1_in_sum_are_refused(one, two):
    with pytest.raises(ConfigError, match=r"above 1 in sum: \{'one': 0\.6, 'two': 0\.5\}"):
        resolved(
            {
                "w": {"agents": ["*"], "trainable": True},
                "one": {"agents": one, "share": 0.6},
                "two": {"agents": two, "share": 0.5},
            }
        )


def test_shares_of_different_agents_are_not_added():
    resolved(
        {
            "w": {"agents": ["*"], "trainable": True},
            "one": {"agents": ["a*"], "share": 0.6},
            "two": {"agents": ["b"], "share": 1.0},
            "all": {"agents": ["c"], **ENDPOINT, "share": 0},
        }
    )


def test_attempts_know_which_agents_are_trained_in_spite_of_opponents():
    config, _ = resolved(
        {
            "foe": {**ENDPOINT, "share": 0.5},
            "w": {"agents": ["writer"], "trainable": True},
        },
    )
    rollout = Rollout(
        id="r", task=Task(id="t"), run_id="run", metadata={CAPTURE: capture_settings(config)}
    )
    assert rollout.trains("writer")
    assert not rollout.trains("judge")


NAMES = st.text("ab", min_size=1, max_size=3)
PATTERNS = st.lists(st.sampled_from(["a", "b", "ab", "a*", "*b", "*"]), min_size=1, max_size=2)
SHARES = st.lists(st.tuples(PATTERNS, st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0])), max_size=3)


@given(shares=SHARES, names=st.lists(NAMES, min_size=1))
def test_no_agent_has_shares_above_1_in_a_configuration_that_passes(shares, names):
    sections = {"w": {"agents": ["*"], "trainable": True}}
    sections |= {
        f"foe{number}": {"agents": patterns, "share": share}
        for number, (patterns, share) in enumerate(shares)
    }
    try:
        _, found = resolved(sections)
    except ConfigError:
        return
    for name in names:
        matching = [p.share for p in found if p.share is not None and any_matches(p.agents, name)]
        assert sum(matching) <= 1 + 1e-9
