"""A run of a program that disables the SDK's tracing: the error states what is missing."""

import agents
import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner
from agents.tracing import get_trace_provider, set_trace_provider
from agents.tracing.provider import DefaultTraceProvider
from openai import AsyncOpenAI

import agl_core as agl
from tests.core.app.conftest import Bench
from tests.installed import INSTALLED


def by_config(monkeypatch):
    return RunConfig(tracing_disabled=True)


def by_function(monkeypatch):
    agents.set_tracing_disabled(True)


def by_variable(monkeypatch):
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Whole runs with this integration alone, under a trace provider of their own."""
    others = [name for name in INSTALLED.split(",") if name != "openai_agents"]
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", ",".join(others))
    before = get_trace_provider()
    set_trace_provider(DefaultTraceProvider())
    yield Bench(tmp_path)
    set_trace_provider(before)


@pytest.mark.parametrize("disable", [by_config, by_function, by_variable])
def test_a_run_without_tracing_fails_for_calls_without_an_agent(bench, monkeypatch, disable):
    """D8: the calls reached the gateway; the error says so, and to leave tracing enabled."""
    config = disable(monkeypatch)

    async def run_agent(task):
        llm = agl.current().llm
        async with AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key) as client:
            model = OpenAIChatCompletionsModel(model="any", openai_client=client)
            writer = Agent(name="writer", instructions="Write.", model=model)
            return (await Runner.run(writer, "Well?", run_config=config)).final_output

    with pytest.raises(agl.ConfigError) as refused:
        bench.train({"agent": run_agent}, train__steps=1)
    assert "Agent 'writer' was not seen" in str(refused.value)
    assert "only calls without an agent" in str(refused.value)
    assert "leave its tracing enabled" in str(refused.value)
    assert "no call reached the gateway" not in str(refused.value)
    assert len(bench.engine.backends["frozen"].requests) == 8
