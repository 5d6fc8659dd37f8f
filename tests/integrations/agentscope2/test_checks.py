"""What the doctor is told of the framework's pitfalls: by hand-written spans, and by real programs."""

import logging
from dataclasses import replace

import msgspec
import pytest
from agentscope.agent import InjectionConfig
from agl_agentscope._checks import pitfalls
from agl_agentscope._usage import CLOCK, PARKED, SHARED
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.scenario import PLANNER, WRITER

from agl_core.config import RunConfig
from agl_core.types import AttemptStatus, Failure, FailureKind, SpanKind

from .programs import AgentScopeProgram, agent, models, reply

FRAMEWORK = {"agl.framework": "agentscope"}
OURS = CallOptions(framework="agentscope")


def recorded(script=None):
    script = script or ScriptedAttempt()
    script.call(WRITER, [1], [2], options=OURS)
    return script.record()


def marked(**attributes):
    script = ScriptedAttempt()
    span = script._span(
        SpanKind.AGENT, WRITER, agent=WRITER, attributes={**FRAMEWORK, **attributes}
    )
    script.spans.append(span)
    return [recorded(script)]


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        return [recorded()]


class TestClock(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return marked(**{CLOCK: True})


class TestShared(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return marked(**{SHARED: "carried"})


class TestFailedTools(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        span = script._span(SpanKind.TOOL, "lookup", attributes=FRAMEWORK)
        script.spans.append(msgspec.structs.replace(span, status="error", error="no tea"))
        return [recorded(script)]


class TestParked(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return marked(**{PARKED: ["lookup"]})


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def pitfall(self):
        record = recorded()
        failure = Failure(kind=FailureKind.AGENT, message="RuntimeError: Event loop is closed")
        attempt = msgspec.structs.replace(
            record.attempt, status=AttemptStatus.FAILED, failure=failure
        )
        return [replace(record, attempt=attempt)]


def test_programs_without_the_framework_are_none_of_its_business():
    script = ScriptedAttempt()
    script.call("", [1], [2])
    assert found(script.record()) == {}


async def test_a_program_as_it_should_be_is_ok(bench):
    played = await bench.one(AgentScopeProgram().arun)
    assert {each.severity for each in found(played.record).values()} == {"ok"}


async def test_a_program_with_every_pitfall(bench, caplog):
    made = []

    async def lookup(item: str) -> str:
        """Look up.

        Args:
            item (str): the item
        """
        raise KeyError(item)

    async def program(job):
        async with models(job) as model:
            if not made:
                made.append(agent(model, PLANNER, lookup, injection_config=InjectionConfig()))
            made[0].model = model(PLANNER)
            return await reply(made[0], job.question)

    with caplog.at_level(logging.CRITICAL):
        records = [(await bench.one(program)).record for _ in range(2)]
    assert {check: each.severity for check, each in found(*records).items()} == {
        "agentscope.clock": "warning",
        "agentscope.shared": "error",
        "agentscope.tools": "warning",
        "agentscope.parked": "ok",
    }
