"""What the doctor is told of the SDK's pitfalls: by hand-written spans, and by real programs."""

import msgspec
import openai
import pytest
from agents import OpenAIResponsesModel, Runner, function_tool
from agl_openai_agents._checks import pitfalls
from agl_openai_agents._shapes import UNTRACED
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.scenario import JUDGE, PLANNER, WRITER

from agl_core.config import RunConfig
from agl_core.tracing import UNNAMED
from agl_core.types import AttemptStatus, Failure, FailureKind, SpanKind

OURS = CallOptions(framework="openai_agents")
NAMED = {"agl.framework": "openai_agents"}


def recorded(*agents, options=OURS):
    script = ScriptedAttempt()
    for agent in agents:
        script.call(agent, [1], [2], options=options)
    return script.record()


def with_span(kind, name, status="ok"):
    script = ScriptedAttempt()
    script.call(WRITER, [1], [2], options=OURS)
    span = script._span(kind, name, attributes=NAMED)
    script.spans.append(msgspec.structs.replace(span, status=status))
    return script.record()


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        return [recorded(WRITER)]


class TestUntraced(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [with_span(SpanKind.MESSAGE, UNTRACED)]


class TestUnnamed(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [with_span(SpanKind.OPERATION, UNNAMED)]

    def test_an_agent_of_that_name_has_a_name(self):
        record = with_span(SpanKind.AGENT, UNNAMED)
        assert found(record)["openai_agents.names"].severity == "ok"


class TestNobody(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.spans.append(script._span(SpanKind.TOOL, "lookup", attributes=NAMED))
        script.call("", [1], [2], options=CallOptions(parent=script.spans[-1].id))
        return [script.record()]


class TestUnsent(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.client_span(WRITER, call_id=None, options=OURS)
        return [script.record()]


class TestFailedTools(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [with_span(SpanKind.TOOL, "lookup", status="error")]


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.call(WRITER, [1], [2], options=OURS)
        failure = Failure(kind=FailureKind.AGENT, message="RuntimeError: Event loop is closed")
        return [script.record(AttemptStatus.FAILED, failure=failure)]


def test_programs_without_the_sdk_are_none_of_its_business():
    assert found(recorded("", options=CallOptions())) == {}


async def test_real_programs_are_found_out(bench, agent):
    async def program(job):
        @function_tool
        async def review(item: str) -> str:
            """Ask the judge, then fail."""
            async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
                messages = [{"role": "user", "content": item}]
                await client.chat.completions.create(model=job.model(JUDGE), messages=messages)
            raise ValueError("no")

        await Runner.run(agent(job, PLANNER, tools=[review]), job.question)
        await Runner.run(agent(job, "", called=WRITER), job.question)

    played = await bench.one(program)
    assert played.error is None
    findings = found(played.record)
    bad = {name for name, each in findings.items() if each.severity != "ok"}
    assert bad == {"openai_agents.names", "openai_agents.unowned", "openai_agents.tools"}
    assert findings["openai_agents.unowned"].figures == {"calls": 1}
    assert findings["openai_agents.tools"].figures == {"tools": ["review"]}


async def test_a_sound_program_is_left_alone(bench, agent):
    async def program(job):
        return (await Runner.run(agent(job, WRITER), job.question)).final_output

    played = await bench.one(program)
    assert {each.severity for each in found(played.record).values()} == {"ok"}


async def test_what_only_openai_serves_is_found(bench, agent):
    async def program(job):
        writer = agent(job, WRITER, model=OpenAIResponsesModel)
        await Runner.run(writer, job.question, previous_response_id="resp_1")

    played = await bench.one(program)
    assert isinstance(played.error, openai.BadRequestError)
    finding = found(played.record)["openai_agents.unserved"]
    assert (finding.severity, finding.figures) == ("error", {"calls": 1})
    assert "previous_response_id" in finding.measured
