import json

import pytest

from agl_core.config.loader import resolve
from agl_core.config.policies import capture_settings, resolve_policies
from agl_core.errors import ConfigError
from agl_core.gateway._routing import Router
from agl_core.interfaces import Identity
from agl_core.types import Rollout, Task
from agl_core.types.rollout import CAPTURE


def policies(agents, sections):
    """Resolve; `sections` maps a policy's name to its patterns and whether it trains."""
    config = resolve(
        {
            "model": "m",
            "agents": agents,
            "policies": {
                name: {"agents": patterns, "trainable": trainable}
                for name, (patterns, trainable) in sections.items()
            },
        }
    )
    return resolve_policies(config, training=True)


REST, WRITER = (["*"], False), (["writer"], True)


@pytest.mark.parametrize(
    ("agents", "sections", "frozen"),
    [
        (["writer"], {"rest": REST, "w": WRITER}, "rest"),
        (["writer"], {"a": (["w*"], False), "w": WRITER}, "a"),
        (["writer*"], {"rest": REST, "w": (["writer*"], True)}, "rest"),
        (["writer*"], {"a": (["writer*"], False), "w": (["*"], True)}, "a"),
        (["writer_*"], {"a": (["writer*"], False)}, "a"),
    ],
)
def test_an_agent_that_a_frozen_policy_would_serve_is_refused(agents, sections, frozen):
    with pytest.raises(ConfigError, match=rf"policy '{frozen}' that serves it is frozen"):
        policies(agents, {**sections, "other": (["other"], True)})


@pytest.mark.parametrize(
    ("agents", "sections"),
    [
        (["writer"], {"w": WRITER, "rest": REST}),
        (["writer"], {"w": (["w*"], True), "rest": REST}),
        (["writer*"], {"w": (["writer*"], True), "rest": REST}),
        (["w*"], {"a": (["w?"], False), "w": (["w*"], True), "rest": REST}),
        (["*"], {"judge": (["judge"], False), "w": (["*"], True)}),
    ],
)
def test_an_agent_that_a_trainable_policy_serves_passes(agents, sections):
    assert [policy.name for policy in policies(agents, sections)] == list(sections)


def test_what_is_checked_is_what_the_gateway_does():
    table = Router()
    for policy in policies(["writer"], {"w": (["w*"], True), "rest": REST}):
        table.set(policy, object())
    rollout = Rollout(id="r", task=Task(id="t"), run_id="run")

    def trainable(agent):
        identity = Identity(rollout_id="r", attempt_id="a", call_id="c", agent=agent)
        return table.find(identity, "", rollout).policy.trainable

    assert trainable("writer")
    assert not trainable("judge")


def test_what_attempts_know_of_capture():
    """C2: a rollout says in every process which agents are trained."""
    config = resolve(
        {
            "model": "m",
            "agents": ["*er"],
            "policies": {
                "fixed": {"agents": ["planner"]},
                "trained": {"agents": ["*"], "trainable": True},
            },
            "capture": {"elsewhere": "refuse", "allow_hosts": ["*.example.com"]},
        }
    )
    metadata = {CAPTURE: json.loads(json.dumps(capture_settings(config)))}
    rollout = Rollout(id="ro", task=Task(id="t"), run_id="run", metadata=metadata)
    names = ("writer", "planner", "judge", "@er", "", None)
    assert [name for name in names if rollout.trains(name)] == ["writer"]
    hosts = ("api.example.com", "example.com")
    assert [host for host in hosts if rollout.may_send_to(host)] == ["api.example.com"]


def test_a_run_without_agents_says_nothing_of_capture():
    assert capture_settings(resolve({"model": "m"})) == {}
    rollout = Rollout(id="ro", task=Task(id="t"), run_id="run")
    assert not rollout.trains("writer")
    assert rollout.may_send_to("example.com")


def test_exceptions_to_nothing_are_refused():
    with pytest.raises(ConfigError, match="allow_hosts has no effect"):
        resolve({"capture": {"allow_hosts": ["example.com"]}})
