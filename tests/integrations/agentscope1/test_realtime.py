"""A realtime model is asked over a WebSocket: nothing of it is trained, and it is said."""

import asyncio
from importlib.util import find_spec

import pytest
from agl_testing.scenario import SYSTEM, WRITER
from websockets.asyncio.server import serve

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind

from .programs import since

ANSWER = '{"type": "session.created", "session": {"id": "session_1"}}'


async def greet(connection):
    await connection.send(ANSWER)
    await connection.wait_closed()


@since(find_spec("agentscope.realtime"), "realtime models")
async def test_a_realtime_model_of_a_trained_agent_is_an_error_of_the_attempt(bench):
    from agentscope.realtime import OpenAIRealtimeModel

    async def program(job):
        model = OpenAIRealtimeModel("m", job.api_key)
        model.websocket_url = f"{address}?model=m"
        heard = asyncio.Queue()
        with agent_scope(WRITER):
            await model.connect(heard, SYSTEM)
            event = await heard.get()
            await model.disconnect()
        return type(event).__name__

    async with serve(greet, "127.0.0.1", 0) as server:
        address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime"
        played = await bench.one(program)
    assert played.error is None
    (asked,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert (asked.agent, asked.attributes[semconv.AGL_WEBSOCKET]) == (WRITER, address)
    with pytest.raises(CaptureError, match="never passed through the gateway"):
        played.adapt(WRITER)
