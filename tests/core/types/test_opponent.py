"""P1: the draw of the policy that plays an agent in a training attempt."""

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agl_core import types
from agl_core.types import Policy, any_matches


def opponent(policies, seed, *, agent, known_as=""):
    return types.opponent(policies, seed, agent=agent, known_as=known_as or agent)


TRAINED = Policy(name="trained", agents=("*",), trainable=True)
AGENTS = st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith("@"))
SHARES = st.lists(st.floats(0, 1), max_size=3).filter(lambda shares: sum(shares) <= 1)
SEEDS = st.integers(0, 2**31 - 1)


def policies(shares, agents=("*",)):
    foes = [Policy(name=f"foe{n}", agents=agents, share=s) for n, s in enumerate(shares)]
    return [TRAINED, *foes]


@given(shares=SHARES, seed=SEEDS, agent=AGENTS)
def test_the_draw_depends_on_seed_and_agent_only(shares, seed, agent):
    drawn = opponent(policies(shares), seed, agent=agent)
    assert drawn == opponent(policies(shares), seed, agent=agent)
    assert drawn is None or (drawn.share or 0) > 0


@given(seed=SEEDS, agent=AGENTS, alias=st.sampled_from(["wolf", "seer"]))
def test_an_agent_with_an_alias_is_matched_by_it_and_drawn_by_its_name(seed, agent, alias):
    foes = policies([0.5], agents=("wolf",))
    drawn = opponent(foes, seed, agent=agent, known_as=alias)
    as_all = opponent(policies([0.5]), seed, agent=agent)
    assert (drawn is not None) == (alias == "wolf" and as_all is not None)


@given(shares=SHARES, seed=SEEDS, agent=AGENTS)
def test_a_smaller_share_only_gives_attempts_back_to_the_trainable_policy(shares, seed, agent):
    if not shares:
        return
    less = policies([*shares[:-1], shares[-1] / 2])
    now, then = opponent(less, seed, agent=agent), opponent(policies(shares), seed, agent=agent)
    assert now is None or (then is not None and now.name == then.name)


@given(seed=SEEDS, agent=AGENTS)
def test_only_policies_that_match_are_drawn(seed, agent):
    foes = policies([1.0], agents=("a*",))
    assert (opponent(foes, seed, agent=agent) is not None) == any_matches(("a*",), agent)


@given(seed=SEEDS)
def test_a_framework_s_own_calls_and_calls_without_agent_are_not_drawn(seed):
    assert opponent(policies([1.0]), seed, agent="@selector") is None
    assert opponent(policies([1.0]), seed, agent="") is None


def test_shares_are_probabilities_for_each_agent():
    count = 4_000
    foes = policies([0.2, 0.3])
    one = [opponent(foes, seed, agent="seat 1") for seed in range(count)]
    two = [opponent(foes, seed, agent="seat 2") for seed in range(count)]
    for drawn in (one, two):
        shares = Counter(policy.name if policy else "trained" for policy in drawn)
        assert abs(shares["foe0"] / count - 0.2) < 0.03
        assert abs(shares["foe1"] / count - 0.3) < 0.03
    both = sum(a is not None and b is not None for a, b in zip(one, two, strict=True))
    assert abs(both / count - 0.25) < 0.03


def test_the_draw_is_the_same_in_another_process():
    program = (
        "from agl_core.types import Policy, opponent\n"
        "foe = Policy(name='foe', share=0.5)\n"
        "print([int(opponent([foe], seed, agent='3号', known_as='3号') is not None) for seed in range(40)])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    foe = Policy(name="foe", share=0.5)
    here = [int(opponent([foe], seed, agent="3号") is not None) for seed in range(40)]
    assert done.stdout.strip() == str(here)
