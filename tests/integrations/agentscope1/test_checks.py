"""What the doctor is told of the framework's pitfalls: by hand-written spans, and by real programs."""

import asyncio
import logging

import pytest
from agentscope.formatter import OpenAIMultiAgentFormatter
from agentscope.plan import Plan, PlanNotebook
from agl_agentscope._checks import pitfalls
from agl_agentscope._usage import CLOCK, FOLDS, INTERRUPTED, PLAN, SHARED
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, WRITER

from agl_core.config import RunConfig
from agl_core.types import SpanKind

from .programs import AgentScopeProgram, agent, models, reply

FRAMEWORK = {"agl.framework": "agentscope"}
OURS = CallOptions(framework="agentscope")


def recorded(script=None):
    script = script or ScriptedAttempt()
    script.call(WRITER, [1], [2], options=OURS)
    return script.record()


def replied(*marks):
    """An attempt with a reply for each of the marks."""
    script = ScriptedAttempt()
    for attributes in marks:
        given = {**FRAMEWORK, FOLDS: False, INTERRUPTED: False, **attributes}
        script.spans.append(
            script._span(SpanKind.AGENT, WRITER, agent=WRITER, attributes=given),
        )
    return [recorded(script)]


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        return replied({})


class TestClock(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return replied({CLOCK: PLAN})


class TestShared(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return replied({SHARED: "concurrent"})


class TestFolded(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return replied({FOLDS: True}, {FOLDS: True})

    @pytest.fixture
    def healthy(self):
        return replied({FOLDS: True}, {})


class TestInterrupted(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return replied({}, {INTERRUPTED: True})


def test_the_fix_of_a_clock_is_that_of_its_version():
    assert "plan_to_hint" in found(*replied({CLOCK: PLAN}))["agentscope.clock"].fix
    assert "InjectionConfig" not in found(*replied({CLOCK: PLAN}))["agentscope.clock"].fix
    assert "InjectionConfig" in found(*replied({CLOCK: True}))["agentscope.clock"].fix


def test_what_the_other_version_does_not_record_is_not_spoken_of():
    script = ScriptedAttempt()
    script.spans.append(
        script._span(SpanKind.AGENT, WRITER, agent=WRITER, attributes=FRAMEWORK),
    )
    checks = found(recorded(script))
    assert "agentscope.folded" not in checks
    assert "agentscope.interrupted" not in checks


async def test_a_program_as_it_should_be_is_ok(bench):
    played = await bench.one(AgentScopeProgram().arun)
    assert {each.severity for each in found(played.record).values()} == {"ok"}
    assert len(found(played.record)) == 5


async def test_a_program_with_every_pitfall(bench, caplog):
    made = []

    async def lookup(item: str):
        """Look up.

        Args:
            item (str): the item
        """
        raise KeyError(item)

    def script(body):
        offered = [tool["function"]["name"] for tool in body.get("tools", ())]
        if "lookup" in offered and body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": "lookup", "arguments": '{"item": "tea"}'}])
        return FakeReply(text=ANSWER)

    async def program(job):
        async with models(job) as model:
            if not made:
                plan = PlanNotebook()
                plan.current_plan = Plan(
                    name="p", description="d", expected_outcome="e", subtasks=[]
                )
                fields = {"plan_notebook": plan, "formatter": OpenAIMultiAgentFormatter()}
                made.append(agent(model, PLANNER, lookup, **fields))
            made[0].model = model(PLANNER)
            await reply(made[0], job.question)
            task = asyncio.ensure_future(reply(made[0], job.question))
            asyncio.get_running_loop().call_soon(task.cancel)
            return await task

    bench.fake.script = script
    with caplog.at_level(logging.CRITICAL):
        records = [(await bench.one(program)).record for _ in range(2)]
    assert {check: each.severity for check, each in found(*records).items()} == {
        "agentscope.clock": "warning",
        "agentscope.shared": "error",
        "agentscope.tools": "warning",
        "agentscope.folded": "warning",
        "agentscope.interrupted": "warning",
    }
