"""What the doctor is told of LangChain's pitfalls: by hand-written spans, and by real programs."""

import langchain_core.globals as settings
import pytest
from agl_langchain._checks import pitfalls
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import PLANNER, WRITER
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from agl_core.config import RunConfig
from agl_core.types import AttemptStatus, Failure, FailureKind, SpanKind

OURS = CallOptions(framework="langchain")
ASKED = {"messages": [HumanMessage("What is the price of tea?")]}


@pytest.fixture
def cache():
    """LangChain's cache, on for one test."""
    settings.set_llm_cache(InMemoryCache())
    yield
    settings.set_llm_cache(None)


def recorded(*agents, options=OURS):
    script = ScriptedAttempt()
    for agent in agents:
        script.call(agent, [1], [2], options=options)
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


class TestUnnamed(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [recorded("model")]


class TestAnsweredFromTheCache(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.client_span(WRITER, call_id=None, options=OURS)
        return [script.record()]


class TestInTools(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [in_tool()]


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [closed_loop(OURS)]


def in_tool():
    script = ScriptedAttempt()
    script.spans.append(
        script._span(SpanKind.TOOL, "lookup", attributes={"agl.framework": "langchain"})
    )
    above = script.spans[-1].id
    script.call("", [1], [2], options=CallOptions(framework="langchain", parent=above))
    return script.record()


def closed_loop(options):
    script = ScriptedAttempt()
    script.call(WRITER, [1], [2], options=options)
    failure = Failure(kind=FailureKind.AGENT, message="RuntimeError: Event loop is closed")
    return script.record(AttemptStatus.FAILED, failure=failure)


def test_programs_without_langchain_are_none_of_its_business():
    assert found(recorded("model", options=CallOptions())) == {}


def test_a_cache_is_told_even_where_nothing_was_recorded(cache):
    cached = found()
    assert cached["langchain.cache"].severity == "error"
    assert cached["langchain.cache"].figures == {"cache": "InMemoryCache", "unsent": 0}


def test_calls_below_tools_are_counted():
    assert found(in_tool())["langchain.tools"].figures == {"calls": 1}


async def test_a_second_answer_of_a_real_cache_is_found(bench, chat, cache):
    def program(job):
        model = chat(job, WRITER)
        for _ in range(2):
            model.invoke("What is the price of tea?")

    played = await bench.one(program)
    assert found(played.record)["langchain.cache"].figures["unsent"] == 1


async def test_an_unnamed_agent_is_found_and_a_named_one_is_not(bench, chat):
    def program(job, name):
        create_agent(chat(job, WRITER), [], name=name).invoke(ASKED)

    def unnamed(job):
        program(job, None)

    def named(job):
        program(job, WRITER)

    first, second = await bench.one(unnamed), await bench.one(named)
    assert found(first.record)["langchain.names"].figures == {"names": ["model"]}
    assert found(second.record)["langchain.names"].severity == "ok"


async def test_a_model_inside_a_tool_is_found(bench, chat):
    def program(job):
        inner = chat(job, PLANNER)

        @tool
        def lookup(item: str) -> str:
            """Look up what an item costs."""
            return inner.invoke(item).text

        lookup.invoke({"item": "tea"})

    played = await bench.one(program)
    assert found(played.record)["langchain.tools"].figures == {"calls": 1}


async def test_a_tool_that_is_used_wrongly_is_found(bench, chat):
    replies = [FakeReply(tool_calls=[{"name": "price", "arguments": '{"thing": "tea"}'}])]
    bench.fake.script = lambda _: replies.pop() if replies else FakeReply(text="4 coins")

    @tool
    def price(item: str) -> str:
        """Look up a price."""
        return "4 coins"

    played = await bench.one(
        lambda job: create_agent(chat(job, WRITER), tools=[price], name=WRITER).invoke(ASKED)
    )
    assert played.error is None
    finding = found(played.record)["langchain.failed_tools"]
    assert (finding.severity, finding.figures["tools"]) == ("warning", ["price"])
    assert found(recorded(WRITER))["langchain.failed_tools"].severity == "ok"
