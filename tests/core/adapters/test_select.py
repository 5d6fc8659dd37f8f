import pytest

from agl_core.adapters import AgentSelector, serving_policy
from agl_core.errors import ConfigError
from agl_core.types import Policy


@pytest.mark.parametrize(
    ("pattern", "agent", "matches"),
    [
        ("writer", "writer", True),
        ("writer", "Writer", False),
        ("w*", "writer", True),
        ("writer_?", "writer_1", True),
        ("[ab]", "a", True),
        ("odd[name]", "odd[name]", True),
        ("*", "@selector", False),
        ("*", "", False),
        ("*", None, False),
    ],
)
def test_patterns(pattern, agent, matches):
    assert AgentSelector([pattern]).matches(agent) is matches


@pytest.mark.parametrize("pattern", ["", "@selector", "@*"])
def test_reserved_and_empty_patterns_are_refused(pattern):
    with pytest.raises(ConfigError, match="cannot be trained"):
        AgentSelector([pattern])


def test_a_pattern_that_matches_nobody_lists_who_was_seen():
    selector = AgentSelector(["writer", "plannr"])
    with pytest.raises(ConfigError, match=r"'plannr'.*\['planner', 'writer'\].*'planner'\?"):
        selector.check({"writer", "planner", "@summarizer"})


def test_where_nobody_was_seen_the_message_says_what_clients_must_use():
    with pytest.raises(ConfigError, match=r"'writer' was not seen.*agl\.current\(\)\.llm"):
        AgentSelector(["writer"]).check({"@reward"})


def test_calls_without_an_agent_are_named():
    """D8: the framework's tracing is disabled."""
    with pytest.raises(ConfigError, match=r"only calls without an agent.*agent_scope\('writer'\)"):
        AgentSelector(["writer"]).check({"", "@reward"})
    with pytest.raises(ConfigError, match=r"seen were \['planner'\] and calls without an agent"):
        AgentSelector(["writer"]).check({"", "planner"})


def test_every_pattern_that_matches_passes():
    AgentSelector(["w*", "planner"]).check({"writer", "planner"})


def test_the_first_policy_that_matches_serves():
    policies = [Policy(name="a", agents=("w*",)), Policy(name="b")]
    assert serving_policy("writer", policies).name == "a"
    assert serving_policy("planner", policies).name == "b"
    assert serving_policy("planner", policies[:1]) is None
