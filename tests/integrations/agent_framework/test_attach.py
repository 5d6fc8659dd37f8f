"""Attached and detached: what is wrapped, what is refused, and what the user's own tools still see."""

import threading
from contextvars import copy_context

import pytest
from agent_framework import Agent, AgentMiddlewareLayer, observability
from agl_agent_framework._integration import AgentFrameworkIntegration
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, WRITER, skeleton
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl_core.errors import ConfigError
from agl_core.tracing import attach

from .programs import AgentFrameworkProgram, agent, clients


def test_a_version_whose_runs_take_no_middleware_is_refused(monkeypatch):
    def run(self, messages=None, *, stream=False):
        raise NotImplementedError

    monkeypatch.setattr(AgentMiddlewareLayer, "run", run)
    with pytest.raises(ConfigError, match=r"AgentMiddlewareLayer\.run.*middleware"):
        AgentFrameworkIntegration().attach()
    assert AgentMiddlewareLayer.run is run


def test_who_wraps_over_us_keeps_their_wrapper_and_ours_only_passes(monkeypatch):
    monkeypatch.setattr(AgentMiddlewareLayer, "run", AgentMiddlewareLayer.run)
    integration = AgentFrameworkIntegration()
    integration.attach()
    ours = AgentMiddlewareLayer.run

    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    AgentMiddlewareLayer.run = theirs
    integration.detach()
    assert AgentMiddlewareLayer.run is theirs


@pytest.mark.parametrize("given", ["text", 7, {"a": 1}])
async def test_what_is_no_list_of_middleware_is_refused_in_the_frameworks_words(bench, given):
    async def program(job):
        async with clients(job) as client:
            await agent(client, WRITER).run(job.question, middleware=given)

    async def without(job):
        async with clients(job) as client:
            await agent(client, WRITER).run(job.question, middleware=given)

    played = await bench.one(program)
    with pytest.raises(TypeError) as refused:
        await without(played.job)
    assert repr(played.error) == repr(refused.value)


async def test_an_agent_made_before_attaching_is_recorded(unattached):
    made = {}

    async def make(job):
        made["client"] = clients(job)
        client = await made["client"].__aenter__()
        made["agent"] = Agent(client(WRITER), SYSTEM, name=WRITER)

    async def use(job):
        made["agent"].client.model = job.model(WRITER)
        text = (await made["agent"].run(job.question)).text
        await made["client"].__aexit__(None, None, None)
        return text

    await unattached.one(make)
    attachment = attach(integrations=[AgentFrameworkIntegration()])
    try:
        played = await unattached.one(use)
    finally:
        attachment.detach()
    assert played.output == ANSWER
    check_identity(played)


async def test_a_thread_that_is_given_the_context(bench):
    program = AgentFrameworkProgram()

    def action(job):
        answers = []
        context = copy_context()
        thread = threading.Thread(target=lambda: answers.append(context.run(program.run, job)))
        thread.start()
        thread.join()
        return answers

    played = await bench.one(action)
    assert (played.output, played.error) == ([ANSWER], None)
    check_tokens(played, bench.fake.log)
    check_identity(played)


@pytest.fixture
def exported(monkeypatch):
    """What the user's own OpenTelemetry exports."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def _shown(exporter):
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    exporter.clear()
    names = {span.context.span_id: span.name for span in spans}
    return [(span.name, names.get(span.parent.span_id if span.parent else 0)) for span in spans]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_the_users_own_telemetry_sees_the_same_with_and_without(bench, exported, stream):
    program = AgentFrameworkProgram()
    action = program.stream if stream else program.run
    played = await bench.one(action)
    assert played.error is None
    check_identity(played)
    seen = _shown(exported)

    def outside(job):
        return action(played.job)

    detached = AgentMiddlewareLayer.run
    AgentMiddlewareLayer.run = detached.__wrapped__
    try:
        assert (await bench.one(outside)).error is None
    finally:
        AgentMiddlewareLayer.run = detached
    without = _shown(exported)
    assert _without_keys(seen) == _without_keys(without)
    assert any(name.startswith(f"invoke_agent {PLANNER}") for name, _ in seen)
    assert len(seen) == 6


def _without_keys(shown):
    return [(name.split("@")[0], parent) for name, parent in shown]


async def test_the_users_telemetry_switched_off_changes_nothing(bench):
    program = AgentFrameworkProgram()
    on = await bench.one(program.run)
    observability.disable_instrumentation()
    try:
        off = await bench.one(program.run)
    finally:
        observability.enable_instrumentation(force=True)
    assert skeleton(on.spans) == skeleton(off.spans)
    check_identity(off)
