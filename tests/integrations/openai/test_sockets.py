"""Models that the client asks over WebSockets: nothing of it is trained, and it is said."""

import ssl
import threading

import openai
import pytest
from agl_http_clients._integration import HttpClients
from agl_openai._integration import OpenAIIntegration
from agl_testing.bench import Bench
from agl_testing.scenario import PLANNER, WRITER
from websockets.exceptions import InvalidStatus
from websockets.sync.server import serve

from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope

# The client connects in a way that newer versions of websockets do not like.
pytestmark = pytest.mark.filterwarnings("ignore:.*connect directly:DeprecationWarning")

ANSWER = '{"type": "session.created", "event_id": "event_1"}'
"""What a server says at first, as far as the client has to understand it."""


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[HttpClients(), OpenAIIntegration()]) as bench:
        yield bench


@pytest.fixture
def elsewhere():
    with serve(lambda connection: connection.send(ANSWER), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/v1"
        server.shutdown()
        thread.join()


def realtime(client):
    return client.realtime.connect(model="m")


def responses(client):
    if not hasattr(client.responses, "connect"):
        pytest.skip("this version has no Responses over a WebSocket")
    return client.responses.connect()


def asking(connect, speaker, address=None):
    def program(job):
        with (
            openai.OpenAI(
                base_url=job.base_url, api_key=job.api_key, websocket_base_url=address
            ) as client,
            agent_scope(speaker),
            connect(client) as connection,
        ):
            return connection.recv_bytes().decode()

    return program


@pytest.mark.parametrize("connect", [realtime, responses])
async def test_what_a_trained_agent_is_told_there_is_an_error_of_the_attempt(
    bench, elsewhere, connect
):
    played = await bench.one(asking(connect, WRITER, elsewhere))
    assert (played.output, played.error) == (ANSWER, None)
    with pytest.raises(CaptureError, match="never passed through the gateway"):
        played.adapt(WRITER)
    assert not played.adapt(PLANNER).trajectories


@pytest.mark.parametrize("connect", [realtime, responses])
async def test_the_gateway_refuses_it(bench, connect):
    played = await bench.one(asking(connect, WRITER))
    if isinstance(played.error, ssl.SSLError):
        pytest.skip("this version asks for Realtime by TLS alone")
    assert isinstance(played.error, InvalidStatus)
    assert b"use POST" in played.error.response.body
    assert not played.adapt(WRITER).trajectories
