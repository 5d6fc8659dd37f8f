"""What the doctor is told of CrewAI's pitfalls: by hand-written spans, and by real programs."""

import pytest
from agl_crewai._checks import pitfalls
from crewai import Crew

from agl_core import semconv
from agl_core.config import RunConfig
from agl_core.testing.attempts import CallOptions, ScriptedAttempt
from agl_core.testing.check_contract import CheckContract
from agl_core.testing.fake_openai import FakeReply
from agl_core.testing.scenario import ANSWER, ITEM, PLANNER, TOOL, WRITER
from agl_core.types import Choice, SpanKind

from .programs import agent, lookup, task

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


def deferred():
    script = attempt()
    note = {"role": "tool", "content": "The result of `x` was stored as temporary artifact `y`"}
    script.call(WRITER, [1], [2], options=OURS, messages=[note])
    return script.record()


def test_programs_without_crewai_are_none_of_its_business():
    script = ScriptedAttempt()
    script.call(WRITER, [1], [2])
    assert found(script.record()) == {}


def test_telemetry_that_is_on_is_said(monkeypatch):
    assert found(attempt().record())["crewai.telemetry"].severity == "ok"
    monkeypatch.delenv("CREWAI_DISABLE_TELEMETRY")
    told = found(attempt().record())["crewai.telemetry"]
    assert (told.severity, told.figures) == ("warning", {"off": False})


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


def long_lookup():
    from crewai.tools import tool

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
