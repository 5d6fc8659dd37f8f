"""OpenTelemetry's own SDK and schema on the other side."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from agl_otlp import _protobuf as protobuf
from agl_otlp._decode import decode
from agl_otlp._encode import encode_attempt, request
from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from agl_core.types import Reward
from tests.plugins.otlp.test_codec import spoken


def agent(endpoint, key, compression, **resource):
    """A program that knows OpenTelemetry and nothing of ours."""
    exporter = OTLPSpanExporter(
        endpoint=endpoint, headers={"Authorization": f"Bearer {key}"}, compression=compression
    )
    provider = TracerProvider(resource=Resource({"service.name": "shop", **resource}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("shop.tracer")
    chat = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "writer"}
    with tracer.start_as_current_span("invoke_agent writer", attributes=chat):
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "lookup"}
        with tracer.start_as_current_span("execute_tool lookup", attributes=tool) as span:
            span.record_exception(ValueError("no mug"))
        with tracer.start_as_current_span("judge", attributes={"agl.reward.value": 0.5}):
            pass
    flushed = provider.force_flush()
    provider.shutdown()
    return flushed


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_an_agent_is_recorded_by_its_endpoint_alone(world, compression):
    attempt = await world.attempt()
    key = world.gateway.attempt_key(attempt.rollout_id, attempt.id)
    endpoint = f"{world.gateway.url}/r/{attempt.rollout_id}/a/{attempt.id}/v1/traces"

    assert await asyncio.to_thread(agent, endpoint, key, compression)

    spans = {span.name: span for span in await world.store.spans([attempt.rollout_id])}
    tool, judge = spans["execute_tool lookup"], spans["judge"]
    assert {span.agent for span in spans.values()} == {"writer"}
    assert tool.parent_id == spans["invoke_agent writer"].id
    assert (tool.kind, spans["invoke_agent writer"].kind) == ("tool", "agent")
    assert spans["exception"].attributes["exception.message"] == "no mug"
    assert judge.reward == Reward(value=0.5)


async def test_an_agent_may_say_in_its_resource_whose_it_is(world):
    attempt = await world.attempt()
    identity = {"agl.rollout": attempt.rollout_id, "agl.attempt": attempt.id}
    key = world.gateway.attempt_key(attempt.rollout_id, attempt.id)
    endpoint = f"{world.gateway.url}/v1/traces"

    await asyncio.to_thread(agent, endpoint, key, Compression.NoCompression, **identity)

    assert len(await world.store.spans([attempt.rollout_id])) == 4


@pytest.mark.parametrize("content", [False, True])
def test_what_we_send_fits_the_schema(content):
    script = spoken()
    text = request([encode_attempt(script.record(), content=content)])

    parsed = json_format.Parse(text, ExportTraceServiceRequest())

    (scope,) = parsed.resource_spans[0].scope_spans
    assert [span.name for span in scope.spans][1:] == [span.name for span in script.spans]
    back = decode(protobuf.read_request(_with_bytes_as_ids(parsed)))
    assert [span.name for span in back.spans] == [span.name for span in script.spans]
    assert [span.attributes for span in back.spans] == [span.attributes for span in script.spans]


def _with_bytes_as_ids(parsed):
    """JSON's ids are hex in OTLP and base64 in protobuf's own JSON: put the bytes right."""
    for span in parsed.resource_spans[0].scope_spans[0].spans:
        span.span_id, span.parent_span_id = span.span_id[:8], span.parent_span_id[:8]
    return parsed.SerializeToString()
