"""What the doctor is told of CrewAI's pitfalls: by hand-written spans, and by real programs."""

import asyncio
import os
import traceback

import pytest
from agl_checks import CLOSED_LOOP
from agl_crewai._checks import pitfalls
from agl_crewai._integration import CrewAIIntegration
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, ITEM, PLANNER, TOOL, WRITER
from crewai import Crew
from crewai.events.listeners.tracing.utils import should_enable_tracing
from crewai.telemetry.telemetry import Telemetry
from crewai.tools import tool

from agl_core import semconv
from agl_core.config import RunConfig
from agl_core.tracing import UNNAMED, agent_scope, attach
from agl_core.types import AttemptStatus, Choice, Failure, FailureKind, SpanKind

from .programs import agent, lookup, model, task

OURS = CallOptions(framework="crewai")
CREWAI = {semconv.AGL_FRAMEWORK: "crewai"}


def attempt(agent=WRITER, **attributes):
    """One agent's run with one call."""
    script = ScriptedAttempt()
    ran(script, agent, **attributes)
    script.call(agent, [1], [2], options=OURS)
    return script


def ran(script, agent, *, status="ok", **attributes):
    facts = {f"crewai.{name}": value for name, value in attributes.items()}
    span = script._span(SpanKind.AGENT, agent, agent=agent, attributes={**CREWAI, **facts})
    script.spans.append(type(span)(**{**_fields(span), "status": status}))


def _fields(span):
    return {name: getattr(span, name) for name in span.__struct_fields__}


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        return [attempt(respect_context_window=False, use_better_compaction=False).record()]


class TestMayRewrite(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [attempt(use_better_compaction=True).record()]


class TestRewrote(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = attempt()
        script.call("@summarizer", [1], [2], options=OURS, trainable=False)
        return [script.record()]


class TestTookAResultOut(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [deferred()]


class TestSharedRole(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = attempt(agent_id="1")
        ran(script, WRITER, agent_id="2")
        return [script.record()]


class TestRunAgain(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        ran(script, WRITER, status="error")
        ran(script, WRITER)
        script.call(WRITER, [1], [2], options=OURS)
        return [script.record()]


class TestDroppedText(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = attempt()
        spoken = Choice(token_ids=[2], logprobs=[-1.0], text="Let me look.", tool_calls=[{}])
        script.call(WRITER, [1], [2], options=OURS, choices=[spoken])
        return [script.record()]


class TestFailedTool(_Healthy):
    @pytest.fixture
    def healthy(self):
        return [used("ok")]

    @pytest.fixture
    def pitfall(self):
        return [used("error")]


class TestNoRole(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = attempt()
        script.spans.append(script._span(SpanKind.OPERATION, UNNAMED, attributes=CREWAI))
        return [script.record()]


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def healthy(self):
        return [failed("RuntimeError: something else")]

    @pytest.fixture
    def pitfall(self):
        return [failed("RuntimeError: Event loop is closed")]


def used(status):
    script = attempt()
    span = script._span(SpanKind.TOOL, TOOL, attributes=CREWAI)
    script.spans.append(type(span)(**{**_fields(span), "status": status}))
    return script.record()


def failed(message, behind=""):
    failure = Failure(kind=FailureKind.AGENT, message=message, traceback=behind)
    return attempt().record(AttemptStatus.FAILED, failure=failure)


def deferred():
    script = attempt()
    note = {"role": "tool", "content": "The result of `x` was stored as temporary artifact `y`"}
    script.call(WRITER, [1], [2], options=OURS, messages=[note])
    return script.record()


def test_programs_without_crewai_are_none_of_its_business():
    script = ScriptedAttempt()
    script.call(WRITER, [1], [2])
    assert found(script.record()) == {}


SWITCHES = ("CREWAI_DISABLE_TELEMETRY", "CREWAI_DISABLE_TRACKING", "OTEL_SDK_DISABLED")


def telemetry(monkeypatch, **environment):
    """What is said with these variables alone, and what CrewAI itself does then."""
    for name in (*SWITCHES, "CREWAI_TRACING_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = found(attempt().record())["crewai.telemetry"]
    attachment = attach(integrations=[CrewAIIntegration()])
    try:
        assert told.figures["off"] is Telemetry._is_telemetry_disabled()
    finally:
        attachment.detach()
    assert told.figures["traced"] is should_enable_tracing()
    return told


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", ["true", "1", " Yes ", "ON"])
def test_telemetry_that_is_off_is_no_pitfall(monkeypatch, name, value):
    told = telemetry(monkeypatch, **{name: value})
    assert (told.severity, told.figures) == ("ok", {"off": True, "traced": False})


def test_telemetry_of_which_nothing_is_said_is_off_while_attached_and_as_it_was_then(monkeypatch):
    told = telemetry(monkeypatch)
    assert (told.severity, told.figures) == ("ok", {"off": True, "traced": False})
    assert not Telemetry._is_telemetry_disabled()
    assert not any(name in os.environ for name in SWITCHES)


@pytest.mark.parametrize("value", ["", "false", "0", "no", "off"])
def test_telemetry_that_is_on_is_said(monkeypatch, value):
    told = telemetry(monkeypatch, CREWAI_DISABLE_TELEMETRY=value)
    assert (told.severity, told.figures) == ("warning", {"off": False, "traced": False})
    assert "CREWAI_DISABLE_TELEMETRY=true" in told.fix


@pytest.mark.parametrize(("value", "traced"), [("true", True), ("1", True), ("false", False)])
def test_traces_that_are_on_are_said(monkeypatch, value, traced):
    told = telemetry(monkeypatch, CREWAI_DISABLE_TELEMETRY="1", CREWAI_TRACING_ENABLED=value)
    assert (told.severity, told.figures["traced"]) == ("warning" if traced else "ok", traced)
    assert ("traces" in told.measured) is traced


def test_agents_of_two_attempts_share_no_role():
    first, second = attempt(agent_id="1").record(), attempt(agent_id="2").record()
    assert found(first, second)["crewai.roles"].severity == "ok"


async def test_the_defaults_are_found_and_the_two_settings_stop_them(bench):
    def program(job, **settings):
        return agent(job, WRITER, **settings).kickoff(job.question).raw

    loose = {"respect_context_window": True, "use_better_compaction": True}
    first = await bench.one(lambda job: program(job, **loose))
    second = await bench.one(program)
    told = found(first.record)["crewai.rewriting"]
    assert (told.severity, told.figures["agents"]) == ("warning", [WRITER])
    assert "respect_context_window=False, use_better_compaction=False" in told.fix
    assert found(second.record)["crewai.rewriting"].severity == "ok"


async def test_a_result_that_crewai_took_out_is_found(bench):
    def program(job):
        planner = agent(job, PLANNER, long_lookup(), use_better_compaction=True)
        return planner.kickoff(job.question).raw

    bench.fake.script = once()
    played = await bench.one(program)
    told = found(played.record)["crewai.rewriting"]
    assert (told.severity, told.figures["deferred"]) == ("error", 1)


async def test_an_agent_that_was_run_again_is_found(bench):
    failures = [RuntimeError("closed")]

    def program(job):
        def stop(step):
            if failures:
                raise failures.pop()

        planner = agent(job, PLANNER, lookup, step_callback=stop)
        return Crew(agents=[planner], tasks=[task(job.question, planner)]).kickoff().raw

    played = await bench.one(program)
    assert found(played.record)["crewai.retries"].figures == {"failed": 1}


async def test_text_beside_a_tool_call_is_found_and_missing_from_the_next_prompt(bench):
    use = {"name": TOOL, "arguments": f'{{"item": "{ITEM}"}}'}

    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return FakeReply(text=ANSWER)
        return FakeReply(text="Let me look.", tool_calls=[use])

    bench.fake.script = script
    played = await bench.one(lambda job: agent(job, PLANNER, lookup).kickoff(job.question).raw)
    assert found(played.record)["crewai.text"].figures == {"answers": 1}
    assert "Let me look." not in str(played.calls[1].messages)


async def test_a_tool_that_fails_and_an_agent_without_a_role_are_found(bench):
    @tool(TOOL)
    def broken(item: str) -> str:
        """Look up what an item costs."""
        raise KeyError(item)

    def program(job):
        with agent_scope(PLANNER):
            silent = agent(job, "", broken)
            silent.llm = model(job, PLANNER)
            return silent.kickoff(job.question).raw

    told = found((await bench.one(program)).record)
    assert told["crewai.tools"].figures == {"failed": 1, "used": 1, "tools": [TOOL]}
    assert told["crewai.names"].figures == {"runs": 1}


def test_a_closed_loop_is_found_behind_what_crewai_makes_of_it():
    """It says that it failed to connect, by which many a cause is meant."""
    loop = asyncio.new_event_loop()
    loop.close()
    try:
        try:
            loop.call_soon(print)
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to OpenAI API: Connection error.") from error
    except ConnectionError as error:
        told, behind = str(error), "".join(traceback.format_exception(error))
    assert CLOSED_LOOP in behind
    assert found(failed(told, behind))["crewai.loop"].figures == {"attempts": 1}
    assert "crewai.loop" not in found(failed(told))


def long_lookup():
    @tool(TOOL)
    def lookup(item: str) -> str:
        """Look up what an item costs."""
        return "4 coins\n" * 5000

    return lookup


def once():
    asked = []

    def script(body):
        if asked:
            return FakeReply(text=ANSWER)
        asked.append(body)
        return FakeReply(tool_calls=[{"name": TOOL, "arguments": f'{{"item": "{ITEM}"}}'}])

    return script
