"""Models that the SDK asks over WebSockets: nothing of it is trained, and it is said."""

import asyncio
import json

import pytest
from agents import Agent, Runner
from agents.models.openai_responses import OpenAIResponsesWSModel
from agents.realtime import RealtimeAgent, RealtimeRunner
from agl_openai_agents._checks import pitfalls
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, WRITER
from openai import AsyncOpenAI
from websockets.asyncio.server import serve

from agl_core import semconv
from agl_core.config import RunConfig
from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "output": [MESSAGE],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}
COMPLETED = {"type": "response.completed", "sequence_number": 1, "response": RESPONSE}
CLEARED = {"type": "input_audio_buffer.cleared", "event_id": "event_1"}


@pytest.fixture
async def elsewhere():
    """The address of a model that answers every frame over a WebSocket."""

    async def answer(connection):
        realtime = connection.request.path.startswith("/v1/realtime")
        async for _ in connection:
            await connection.send(json.dumps(CLEARED if realtime else COMPLETED))

    async with serve(answer, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def responses(address=None):
    """A program whose writer asks over a WebSocket, by default the gateway."""

    async def program(job):
        client = AsyncOpenAI(
            base_url=job.base_url, api_key=job.api_key, websocket_base_url=address, max_retries=0
        )
        model = OpenAIResponsesWSModel(job.model(WRITER), openai_client=client)
        try:
            writer = Agent(name=WRITER, instructions=SYSTEM, model=model)
            return (await Runner.run(writer, job.question)).final_output
        finally:
            await model.close()
            await client.close()

    return program


async def test_responses_over_a_websocket_are_an_error_of_the_attempt(bench, elsewhere):
    played = await bench.one(responses(elsewhere))
    assert (played.output, played.error, played.calls) == (ANSWER, None, [])
    with pytest.raises(CaptureError, match="never passed through the gateway"):
        played.adapt(WRITER)
    assert not played.adapt(PLANNER).trajectories
    found = {each.check: each for each in pitfalls([played.record], RunConfig())}
    assert found["openai_agents.unsent"].figures == {"unsent": 1}
    assert "HTTP" in found["openai_agents.unsent"].fix


async def test_the_gateway_refuses_a_websocket(bench):
    played = await bench.one(responses())
    assert "HTTP 404" in str(played.error)
    (asked,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert semconv.AGL_WEBSOCKET in asked.attributes
    assert not played.adapt(WRITER).trajectories


def session(address, agent):
    async def program(job):
        heard = asyncio.Event()
        options = {"url": f"{address}/realtime?model=m", "api_key": job.api_key}
        runner = RealtimeRunner(RealtimeAgent(name=WRITER, instructions=SYSTEM))
        with agent_scope(agent):
            started = await runner.run(model_config=options)
            async with started:
                await started.send_message(job.question)
                async for event in started:
                    if event.type == "raw_model_event":
                        heard.set()
                        break
        return heard.is_set()

    return program


async def test_a_realtime_session_of_a_trained_agent_is_an_error_of_the_attempt(bench, elsewhere):
    played = await bench.one(session(elsewhere, WRITER))
    assert (played.output, played.error, played.calls) == (True, None, [])
    (asked,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert asked.agent == WRITER
    assert asked.attributes[semconv.AGL_WEBSOCKET] == f"{elsewhere}/realtime"
    with pytest.raises(CaptureError, match="never passed through the gateway"):
        played.adapt(WRITER)


async def test_a_realtime_session_of_another_agent_hurts_nobody(bench, elsewhere):
    played = await bench.one(session(elsewhere, PLANNER))
    assert played.error is None
    assert not played.adapt(WRITER).trajectories
