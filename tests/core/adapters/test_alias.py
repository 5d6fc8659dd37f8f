"""G15: selection, credit and baselines by alias; trajectories by name."""

import pytest
from agl_testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt

from agl_core import semconv
from agl_core.adapters import TrajectoryAdapter
from agl_core.errors import RewardError
from agl_core.training.groups import group_attempts
from agl_core.types import Losses, SpanKind


def attempt_of(name, roles, **rewards):
    attempt = ScriptedAttempt(name)
    for position, (seat, role) in enumerate(roles.items()):
        attempt.call(seat, [1, position], [5], options=CallOptions(run=f"{seat}-run"), alias=role)
    for target, value in rewards.items():
        attempt.reward(value, agent=target)
    attempt.reward(0.5)
    return attempt.record()


def adapt(record, agents=("wolf",)):
    return TrajectoryAdapter(agents, policies=[TRAINED, FROZEN]).adapt(record)


def test_trajectories_and_runs_stay_with_the_name():
    """G15: two agents of one alias never share a path."""
    adapted = adapt(attempt_of("1", {"a": "wolf", "b": "wolf", "c": "villager"}))
    assert sorted(adapted.trajectories) == sorted(adapted.returns) == ["a", "b"]
    paths = [path for of_agent in adapted.trajectories.values() for path in of_agent]
    assert [path.agent for path in paths] == ["a", "b"]
    assert [path.calls[0].alias for path in paths] == ["wolf", "wolf"]
    assert adapted.seen == {"wolf", "villager"}


def test_a_reward_names_an_agent_or_its_alias():
    """G15: a name is one agent, an alias all that have it."""
    roles = {"a": "wolf", "b": "wolf", "c": "villager"}
    adapted = adapt(attempt_of("1", roles, wolf=1.0, a=2.0, villager=4.0))
    assert {name: made.value for name, made in adapted.returns.items()} == {"a": 3.5, "b": 1.5}
    with pytest.raises(RewardError, match="agent 'nobody'"):
        adapt(attempt_of("2", roles, nobody=1.0))


def test_a_baseline_is_taken_over_the_agents_of_one_alias():
    """G15: whoever was a wolf in an attempt of the group is compared with the other wolves."""
    adapted = [
        adapt(attempt_of("1", {"a": "wolf", "b": "villager"}, a=1.0)),
        adapt(attempt_of("2", {"a": "villager", "b": "wolf"}, b=0.0)),
        adapt(attempt_of("3", {"a": "villager", "b": "villager"})),
    ]
    losses = Losses()
    (group,) = group_attempts(adapted, losses)
    assert group.agent == "wolf"
    assert [(each.agent, each.value) for each in group.returns] == [("a", 1.5), ("b", 0.5)]
    assert losses.counts == {"agents_absent": 1}


def test_an_alias_without_calls_is_known_from_the_trace():
    """G15: an aliased agent whose calls never left is not taken for one that is not trained."""
    attempt = ScriptedAttempt("1")
    attempt.call("b", [1], [2], alias="wolf")
    said = {semconv.AGL_AGENT: "a", semconv.AGL_ALIAS: "wolf"}
    attempt.spans.append(attempt._span(SpanKind.MESSAGE, semconv.AGL_ALIAS, attributes=said))
    attempt.client_span("a", call_id=None, status="error")
    attempt.reward(1.0)
    assert adapt(attempt.record()).losses.counts == {"calls_unsent": 1}


@pytest.mark.parametrize("said", [{}, {semconv.AGL_AGENT: "b", semconv.AGL_ALIAS: 7}])
def test_an_event_of_a_program_that_is_named_as_an_alias_is_none(said):
    """G15: such as `agl.emit_object(x, name="agl.alias")`."""
    attempt = ScriptedAttempt("1")
    attempt.call("b", [1], [2])
    attempt.spans.append(attempt._span(SpanKind.MESSAGE, semconv.AGL_ALIAS, attributes=said))
    attempt.reward(1.0)
    assert list(adapt(attempt.record(), agents=("b",)).trajectories) == ["b"]
