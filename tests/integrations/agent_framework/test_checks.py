"""What the doctor is told of the framework's pitfalls: by hand-written spans, and by real programs."""

import logging

import msgspec
import pytest
from agent_framework import Agent
from agl_agent_framework._checks import pitfalls
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, SYSTEM, WRITER

from agl_core.config import RunConfig
from agl_core.tracing import UNNAMED
from agl_core.types import AttemptStatus, Choice, Failure, FailureKind, SpanKind

from .programs import agent, clients, lookup

FRAMEWORK = {"agl.framework": "agent_framework"}
OURS = CallOptions(framework="agent_framework")


def recorded(script=None):
    script = script or ScriptedAttempt()
    script.call(WRITER, [1], [2], options=OURS)
    return script.record()


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        return [recorded()]


class TestUnnamed(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.spans.append(script._span(SpanKind.OPERATION, UNNAMED, attributes=FRAMEWORK))
        return [recorded(script)]


class TestNobodys(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        for kind, agent_name in ((SpanKind.AGENT, WRITER), (SpanKind.TOOL, None)):
            above = script.spans[-1].id if script.spans else None
            span = script._span(
                kind, kind.value, agent=agent_name, parent_id=above, attributes=FRAMEWORK
            )
            script.spans.append(span)
        script.call("", [1], [2], options=CallOptions(parent=script.spans[-1].id))
        return [recorded(script)]


class TestFailedTools(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        span = script._span(SpanKind.TOOL, "lookup", attributes=FRAMEWORK)
        span = msgspec.structs.replace(span, status="error", error="KeyError: 'tea'")
        script.spans.append(span)
        return [recorded(script)]


class TestLostReasoning(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        choice = Choice(token_ids=[2], logprobs=[-1.0], text="hi", reasoning="hm")
        script.call(WRITER, [1], [2], options=OURS, choices=[choice])
        return [script.record()]


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.call(WRITER, [1], [2], options=OURS)
        failure = Failure(kind=FailureKind.AGENT, message="RuntimeError: Event loop is closed")
        return [script.record(AttemptStatus.FAILED, failure=failure)]


def test_programs_without_the_framework_are_none_of_its_business():
    script = ScriptedAttempt()
    script.call("", [1], [2])
    assert found(script.record()) == {}


async def test_a_sound_program_has_no_pitfall(bench):
    async def program(job):
        async with clients(job) as client:
            await agent(client, PLANNER, lookup).run(job.question)

    played = await bench.one(program)
    assert {finding.severity for finding in found(played.record).values()} == {"ok"}


async def test_real_pitfalls_are_found(bench, caplog):
    async def program(job):
        async with clients(job) as client:
            await Agent(client(WRITER), SYSTEM).run(job.question)

            async def review(item: str) -> str:
                """Ask the judge."""
                return (await client(JUDGE).get_response([item])).text

            def lookup(item: str) -> str:
                """Look up what an item costs."""
                raise KeyError(item)

            await agent(client, PLANNER, review).run(job.question)
            await agent(client, PLANNER, lookup).run(job.question)

    with caplog.at_level(logging.CRITICAL):
        played = await bench.one(program)
    assert played.error is None
    findings = found(played.record)
    assert findings["agent_framework.names"].figures == {"runs": 1}
    assert findings["agent_framework.unowned"].figures == {"calls": 1}
    assert findings["agent_framework.tools"].figures == {
        "failed": 1,
        "used": 2,
        "tools": ["lookup"],
    }


async def test_parsed_reasoning_is_dropped_by_the_client_as_the_check_says(bench):
    async def program(job):
        async with clients(job) as client:
            writer = agent(client, WRITER)
            session = writer.create_session()
            for text in ("tea?", "coffee?"):
                await writer.run(text, session=session)

    bench.fake.script = lambda body: FakeReply(text=ANSWER, reasoning="Tea is cheap.")
    played = await bench.one(program)
    assert found(played.record)["agent_framework.reasoning"].figures == {"calls": 2}
    assert "Tea is cheap." not in str(played.calls[1].messages)
