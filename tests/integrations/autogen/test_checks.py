"""What the doctor is told of AutoGen's pitfalls: by hand-written spans, and by real programs."""

import asyncio

import msgspec
import pytest
from agl_autogen import _checks
from agl_autogen._agents import ANSWERS, RESPONSE
from agl_autogen._checks import pitfalls
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, TOOL_RESULT, WRITER
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import SingleThreadedAgentRuntime
from autogen_core.models import CreateResult, ModelFamily, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from agl_core import semconv
from agl_core.config import RunConfig
from agl_core.types import AttemptStatus, Failure, FailureKind

OURS = CallOptions(framework="autogen", run="run")


def turn(script, agent=WRITER, **attributes):
    """An agent's turn as the integration records it."""
    span = script.agent(agent, run="run")
    at = script.spans.index(span)
    own = {semconv.AGL_FRAMEWORK: "autogen", ANSWERS: 1, RESPONSE: "TextMessage", **attributes}
    script.spans[at] = msgspec.structs.replace(span, attributes=own)


def recorded(agent=WRITER, *, calls=1, told=(), failure="", **attributes):
    script = ScriptedAttempt()
    turn(script, agent, **attributes)
    for _ in range(calls):
        script.call(agent, [1], [2], options=OURS)
    for at, span in enumerate(script.spans):
        if span.kind.value == "llm" and span.call is None:
            script.spans[at] = msgspec.structs.replace(
                span, attributes={**span.attributes, **dict(told)}
            )
    if not failure:
        return script.record()
    failed = Failure(kind=FailureKind.AGENT, message=failure)
    return script.record(AttemptStatus.FAILED, failure=failed)


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        return [recorded()]


class TestUnsent(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded(calls=0)]


class TestToolResults(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded(**{RESPONSE: "ToolCallSummaryMessage"})]


class TestThoughts(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded(told={semconv.AGL_THOUGHT: "Hm."})]


class TestSelector(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded("@selector", calls=2)]


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded(failure="RuntimeError: Event loop is closed")]


class TestRuntime(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded(failure="RuntimeError: Request names no rollout and attempt: send")]


class TestDownload(_Healthy):
    @pytest.fixture
    def pitfall(self):
        host = "openaipublic.blob.core.windows.net"
        return [recorded(failure=f"ConnectionError: HTTPSConnectionPool(host='{host}')")]


def test_programs_without_autogen_are_none_of_its_business():
    script = ScriptedAttempt()
    script.call(WRITER, [1], [2])
    assert found(script.record()) == {}


def test_text_beside_a_call_of_tools_is_no_lost_thought():
    told = {
        semconv.AGL_THOUGHT: "Hm.",
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: ["function_calls"],
    }
    assert found(recorded(told=told))["autogen.thoughts"].severity == "ok"


def test_a_shared_client_on_a_second_loop_words_it_so():
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match=_checks._FAILURES["autogen.loop"][0]):
        loop.call_soon(print)


async def test_a_sound_program_has_no_pitfall(bench, agent):
    async def program(job):
        writer = agent(job, WRITER, tools=[lookup], max_tool_iterations=2)
        await writer.run(task=job.question)

    played = await bench.one(program)
    assert {finding.severity for finding in found(played.record).values()} == {"ok"}


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


async def test_an_answer_of_a_replaying_client_is_found(bench, agent):
    answer = CreateResult(
        content=ANSWER, usage=RequestUsage(1, 1), finish_reason="stop", cached=True
    )

    async def program(job):
        await agent(job, WRITER, model=ReplayChatCompletionClient([answer])).run(task=job.question)

    played = await bench.one(program)
    assert found(played.record)["autogen.unsent"].figures == {"answers": 1, "unsent": 1}


async def test_a_turn_that_ends_with_a_tools_result_is_found(bench, agent):
    async def program(job):
        await agent(job, PLANNER, tools=[lookup]).run(task=job.question)

    played = await bench.one(program)
    figures = found(played.record)["autogen.tool_results"].figures
    assert figures == {"turns": 1, "agents": [PLANNER]}


async def test_a_thought_that_left_the_history_is_found(bench, agent):
    bench.fake.script = lambda body: FakeReply(text=f"<think>Hm.</think>{ANSWER}")

    async def program(job):
        await agent(job, WRITER, family=ModelFamily.R1).run(task=job.question)

    played = await bench.one(program)
    assert found(played.record)["autogen.thoughts"].figures == {"calls": 1}


async def test_a_selector_that_names_nobody_is_found(bench, agent, client):
    async def program(job):
        team = SelectorGroupChat(
            [agent(job, PLANNER), agent(job, WRITER)],
            client(job, "chooser"),
            termination_condition=MaxMessageTermination(2),
        )
        await team.run(task=job.question)

    played = await bench.one(program)
    assert found(played.record)["autogen.selector"].figures == {"choices": 1, "again": 2}


async def test_a_runtime_that_was_started_before_the_rollout_is_found(bench, agent):
    runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=True)
    runtime.start()

    async def program(job):
        team = RoundRobinGroupChat(
            [agent(job, WRITER)], termination_condition=MaxMessageTermination(2), runtime=runtime
        )
        await team.run(task=job.question)

    played = await bench.one(program)
    assert found(played.record)["autogen.runtime"].figures == {"attempts": 1}
    await runtime.stop()


async def test_a_tool_that_fails_is_found(bench, agent):
    async def lookup(item: str) -> str:
        """Look up a price."""
        raise LookupError("the shop is closed")

    async def program(job):
        await agent(job, WRITER, tools=[lookup]).run(task=job.question)

    played = await bench.one(program)
    assert played.error is None
    finding = found(played.record)["autogen.failed_tools"]
    assert (finding.severity, finding.figures["tools"]) == ("warning", ["lookup"])
    assert found(recorded())["autogen.failed_tools"].severity == "ok"
