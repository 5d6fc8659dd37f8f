"""What the user's own tools see is the same with and without agl."""

import pytest
from agentscope.middleware import TracingMiddleware
from agl_agentscope._integration import AgentScopeIntegration
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, PLANNER
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl_core.tracing import attach

from .programs import agent, lookup, models, reply


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


async def traced(job):
    async with models(job) as model:
        planner = agent(model, PLANNER, lookup, middlewares=[TracingMiddleware()])
        return await reply(planner, job.question)


def shown(exporter):
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    return [(span.name, names.get(span.parent.span_id) if span.parent else None) for span in spans]


async def test_the_users_opentelemetry_exports_the_same(unattached, exported):
    await unattached.one(traced)
    without = shown(exported)
    exported.clear()
    attachment = attach(integrations=[AgentScopeIntegration()])
    try:
        played = await unattached.one(traced)
    finally:
        attachment.detach()
    assert played.output == ANSWER
    assert shown(exported) == without
    assert without
    check_identity(played)
    check_tokens(played, unattached.fake.log)
