"""What the user's own tools see is the same with and without agl."""

import pytest
from agentscope import _config
from agentscope.agent import AgentBase
from agl_agentscope._integration import AgentScopeIntegration
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, PLANNER
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl_core.tracing import attach

from .programs import AgentScopeProgram, agent, lookup, models, reply


@pytest.fixture
def exported(monkeypatch):
    """What the user's own OpenTelemetry exports, with the framework's own tracing on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.mark.parametrize("form", ["arun", "astream"])
async def test_the_users_opentelemetry_exports_the_same(unattached, exported, form):
    async def traced(job):
        _config.trace_enabled = True
        try:
            return await getattr(AgentScopeProgram(), form)(job)
        finally:
            _config.trace_enabled = False

    await unattached.one(traced)
    without = shown(exported)
    exported.clear()
    attachment = attach(integrations=[AgentScopeIntegration()])
    try:
        played = await unattached.one(traced)
    finally:
        attachment.detach()
    assert (played.output, played.error) == (ANSWER, None)
    assert shown(exported) == without
    assert {name.partition(" ")[0] for name, *_ in without} >= {"invoke_agent", "chat"}
    check_identity(played)
    check_tokens(played, unattached.fake.log)


def shown(exporter):
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    return [
        (
            span.name,
            names.get(span.parent.span_id) if span.parent else None,
            sorted(span.attributes),
        )
        for span in spans
    ]


async def test_the_users_own_hooks_run_as_before(bench):
    seen = []
    AgentBase.register_class_hook("pre_reply", "mine", lambda agent, given: seen.append(agent.name))
    try:

        async def program(job):
            async with models(job) as model:
                planner = agent(model, PLANNER, lookup)
                planner.register_instance_hook(
                    "post_acting", "mine", lambda agent, given, output: seen.append("acted")
                )
                return await reply(planner, job.question)

        played = await bench.one(program)
    finally:
        AgentBase.remove_class_hook("pre_reply", "mine")
    assert (played.output, seen) == (ANSWER, [PLANNER, "acted"])
    check_identity(played)
