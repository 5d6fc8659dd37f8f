"""Beside the user's own OpenTelemetry, and the errors that the contract has to notice."""

from dataclasses import replace
from pathlib import Path

import pytest
from agl_autogen._integration import AutoGenIntegration
from agl_autogen._watching import TRACER
from agl_testing._captured import check_identity, triplets
from agl_testing.bench import Bench
from agl_testing.scenario import (
    ANSWER,
    EXPECTED,
    PLANNER,
    TOOL_RESULT,
    WRITER,
    outline,
    skeleton,
)
from autogen_agentchat.agents import AssistantAgent
from autogen_core.tools import BaseTool
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl_core.errors import ConfigError
from agl_core.tracing import attach

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"


def shop(agent):
    """The canonical scenario, for tests that need it beside something else."""

    async def lookup(item: str) -> str:
        """Look up what an item costs."""
        return TOOL_RESULT

    async def program(job):
        planner = agent(job, PLANNER, tools=[lookup], max_tool_iterations=2)
        plan = (await planner.run(task=job.question)).messages[-1].content
        return (await agent(job, WRITER).run(task=plan)).messages[-1].content

    return program


async def test_the_skeleton_is_the_golden_one(bench, agent):
    played = await bench.one(shop(agent))
    assert outline(played.spans) == GOLDEN.read_text(encoding="utf-8").splitlines()
    assert skeleton(played.spans) == EXPECTED


@pytest.fixture
def exported():
    """Spans of the user's own OpenTelemetry; its provider can be set once in a process."""
    exporter = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


async def test_the_users_own_opentelemetry_sees_what_it_always_did(bench, agent, exported):
    played = await bench.one(shop(agent))
    assert played.output == ANSWER
    assert skeleton(played.spans) == EXPECTED
    check_identity(played)
    names = {span.name for span in exported.get_finished_spans()}
    assert {"invoke_agent planner", "execute_tool lookup", "invoke_agent writer"} <= names


async def test_exchanged_agents_are_noticed(bench, agent, monkeypatch):
    other = {PLANNER: WRITER, WRITER: PLANNER}
    real = TRACER.open

    def swapped(recorder, start, **more):
        return real(recorder, replace(start, agent=other.get(start.agent, start.agent)), **more)

    monkeypatch.setattr(TRACER, "open", swapped)
    played = await bench.one(shop(agent))
    with pytest.raises(AssertionError, match="the gateway recorded"):
        check_identity(played)


async def test_a_dropped_tail_of_a_stream_is_noticed(bench, agent):
    async def program(job):
        writer = agent(job, WRITER, model_client_stream=True)
        return (await writer.run(task=job.question)).messages[-1].content

    bench.fake.cut = lambda stream: [stream[: stream.index(b"finish_reason") - 200]]
    played = await bench.one(program)
    assert [call.complete for call in played.calls] == [False]
    assert triplets(played, WRITER) == []


async def test_a_call_recorded_twice_is_noticed(bench, agent):
    """As when two integrations that know nothing of each other watched the same functions."""
    twice = AutoGenIntegration()
    twice.attach()
    try:
        played = await bench.one(shop(agent))
    finally:
        twice.detach()
    with pytest.raises(AssertionError, match="has no call"):
        check_identity(played)


async def test_a_retry_that_counts_as_a_call_of_its_own_is_noticed(bench, agent, monkeypatch):
    monkeypatch.setattr("agl_core.tracing._calls._is_next_try", lambda *told: False)
    bench.fake.fail(1)
    played = await bench.one(shop(agent))
    assert any("second request" in span.error for span in played.spans)


async def test_another_version_of_a_function_is_refused_and_nothing_is_changed(monkeypatch):
    async def run_json(self, arguments): ...

    before = AssistantAgent.on_messages
    monkeypatch.setattr(BaseTool, "run_json", run_json)
    with pytest.raises(ConfigError, match=r"BaseTool\.run_json.*agl-core wraps"):
        attach(integrations=[AutoGenIntegration()])
    assert AssistantAgent.on_messages is before


async def test_a_telemetry_of_the_users_that_raises_is_the_users(bench, agent):
    """A wrapper of somebody else's around ours, put on and left on."""
    inner = AssistantAgent.on_messages

    async def outer(self, *args, **kwargs):
        raise LookupError("their telemetry")

    AssistantAgent.on_messages = outer
    try:
        played = await bench.one(shop(agent))
    finally:
        AssistantAgent.on_messages = inner
    assert isinstance(played.error, LookupError)


async def test_a_wrapper_left_over_ours_passes_through_after_detaching(client):
    async with Bench.open():
        original = vars(AssistantAgent)["on_messages"]
        attachment = attach(integrations=[AutoGenIntegration()])
        ours = vars(AssistantAgent)["on_messages"]

        async def theirs(self, *args, **kwargs):
            return await ours(self, *args, **kwargs)

        AssistantAgent.on_messages = theirs
        attachment.detach()
        try:
            assert vars(AssistantAgent)["on_messages"] is theirs
        finally:
            AssistantAgent.on_messages = original


async def test_a_scope_that_somebody_closed_harms_nothing(bench, agent, monkeypatch):
    real = TRACER.open

    def closing(recorder, start, **more):
        span = real(recorder, start, **more)
        span.close()
        return span

    monkeypatch.setattr(TRACER, "open", closing)
    played = await bench.one(shop(agent))
    assert played.output == ANSWER


async def test_rollouts_beside_each_other_in_one_loop(bench, agent):
    bench.interleave(4)
    for played in await bench.play(shop(agent), rollouts=4):
        assert skeleton(played.spans) == EXPECTED
        check_identity(played)
