"""Names: who spoke, who would be trained, whom nobody is."""

import agl_core as agl
from tests.plugins.doctor.conftest import ask, only, writer


async def two(task: agl.Task) -> str:
    with agl.agent_scope("planner"):
        await ask(f"plan {task.id}")
    return await writer(task)


def test_who_spoke_and_who_is_trained(clinic) -> None:
    found = clinic.find(two, "agents.speak")
    assert found.severity == "ok"
    assert found.figures["agents"] == {
        "planner": {"calls": 4, "trained": False, "policy": "frozen"},
        "writer": {"calls": 4, "trained": True, "policy": "trained"},
    }
    assert "planner: 4 calls, not trained (policy 'frozen')" in found.measured


def test_no_call_at_all_is_an_error(clinic) -> None:
    async def silent(task: agl.Task) -> str:
        return "I know it already"

    found = clinic.find(silent, "agents.speak")
    assert found.severity == "error"
    assert "OPENAI_BASE_URL" in found.fix


def test_a_name_that_nobody_bears_lists_those_seen(clinic) -> None:
    found = clinic.find(two, "agents.match", agents='["writter"]')
    assert found.severity == "error"
    assert found.figures == {
        "pattern": "writter",
        "matched": [],
        "seen": ["planner", "writer"],
    }
    assert "Did you mean 'writer'?" in found.fix


def test_every_glob_is_looked_at(clinic) -> None:
    diagnosis = clinic.diagnose(two, agents='["w*", "critic_*"]')
    found = {
        f.figures["pattern"]: f.severity for f in diagnosis.findings if f.check == "agents.match"
    }
    assert found == {"w*": "ok", "critic_*": "error"}


def test_an_agent_that_runs_without_a_call_is_an_error(clinic) -> None:
    async def mute(task: agl.Task) -> str:
        with agl.agent_scope("writer"):
            pass
        with agl.agent_scope("planner"):
            return (await ask("plan"))["content"]

    found = clinic.find(mute, "agents.match")
    assert found.severity == "error"
    assert "made no model call" in found.measured


def test_a_frozen_policy_for_nobody_is_a_warning(clinic) -> None:
    policies = '{"w": {"agents": ["writer"], "trainable": true}, "j": {"agents": ["judge"]}, '
    policies += '"rest": {"agents": ["*"]}}'
    found = clinic.find(two, "agents.policies", policies=policies)
    assert found.severity == "warning"
    assert found.figures == {"unmatched": {"judge": "j"}}


def test_calls_of_nobody_are_a_warning(clinic) -> None:
    async def anonymous(task: agl.Task) -> str:
        await ask("who am I?", model="frozen")
        return await writer(task)

    found = clinic.find(anonymous, "agents.unowned")
    assert (found.severity, found.figures) == ("warning", {"calls": 4, "in_tools": 0})
    assert "agl.agent_scope" in found.fix


def test_calls_of_the_framework_are_distinguished(clinic) -> None:
    async def framework(task: agl.Task) -> str:
        with agl.agent_scope("@summarizer"):
            await ask("sum it up")
        return await writer(task)

    diagnosis = clinic.diagnose(framework, agents='["*"]')
    found = only(diagnosis, "agents.reserved")
    assert (found.severity, found.figures) == ("ok", {"calls": {"@summarizer": 4}})
    assert only(diagnosis, "agents.match").figures["matched"] == ["writer"]
