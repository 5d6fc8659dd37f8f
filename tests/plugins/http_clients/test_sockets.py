"""Connections to models over WebSockets are recorded as calls that never passed the gateway."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from agl_http_clients._integration import HttpClients
from websockets.asyncio.client import connect as aconnect
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import serve

from agl_core import semconv
from agl_core.tracing import agent_scope, attach, enter
from agl_core.types import Scope, SpanKind
from tests.core.tracing.test_wire import Identity


@contextmanager
def listening(**options):
    """A server on loopback that greets whoever connects."""
    with serve(lambda connection: connection.send("hello"), "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def address():
    with listening() as url:
        yield url


def greeted(url):
    with connect(url) as connection:
        return connection.recv()


async def agreeted(url):
    async with aconnect(url) as connection:
        return await connection.recv()


def asked(context):
    return [
        (span.agent, span.attributes[semconv.AGL_WEBSOCKET], span.status, span.call_id)
        for span in context.recorder.snapshot()
        if span.kind is SpanKind.LLM
    ]


@pytest.mark.usefixtures("attached")
@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/responses", "/v1/live/sessions"])
async def test_a_connection_to_a_model_is_a_call_without_an_id(address, make_context, path):
    context = make_context()
    with enter(context), agent_scope("writer") as scope:
        assert greeted(f"{address}{path}?model=m&key=secret") == "hello"
        assert await agreeted(f"{address}{path}?model=m&key=secret") == "hello"
    assert asked(context) == [("writer", f"{address}{path}", "ok", None)] * 2
    parents = {s.parent_id for s in context.recorder.snapshot() if s.kind is SpanKind.LLM}
    assert parents == {scope.span_id}


@pytest.mark.usefixtures("attached")
def test_other_connections_are_not_models(address, make_context):
    context = make_context()
    with enter(context), agent_scope("writer"):
        assert greeted(f"{address}/devtools/browser/1") == "hello"
    assert asked(context) == []


@pytest.mark.usefixtures("attached")
def test_what_nobody_trains_may_be_asked_so(address, make_context):
    context = make_context()
    with enter(context), agent_scope("voice", trainable=False):
        greeted(f"{address}/v1/realtime")
    assert asked(context) == []


@pytest.mark.usefixtures("attached")
def test_a_refused_connection_has_answered_nothing(make_context):
    def refuse(connection, request):
        return connection.respond(405, "ask over HTTP")

    context = make_context()
    with (
        listening(process_request=refuse) as url,
        enter(context),
        agent_scope("writer"),
        pytest.raises(InvalidStatus),
    ):
        greeted(f"{url}/v1/responses")
    assert asked(context) == [("writer", f"{url}/v1/responses", "error", None)]


def test_a_call_of_the_frameworks_own_is_told_once(address, make_context):
    context = make_context()
    with enter(context):
        span_id = context.recorder.start(SpanKind.LLM, "response", agent="writer")
        call = Scope(kind="call", span_id=span_id, agent="writer")
        attachment = attach(integrations=[HttpClients(), Identity(lambda: call)])
        try:
            greeted(f"{address}/v1/responses")
        finally:
            attachment.detach()
    (span,) = [span for span in context.recorder.snapshot() if span.kind is SpanKind.LLM]
    assert span.id == span_id
    assert span.attributes[semconv.AGL_WEBSOCKET] == f"{address}/v1/responses"


def test_nothing_is_touched_outside_of_attempts_or_left_when_detached(address):
    before = ClientProtocol.connect, ClientProtocol.process_response
    attachment = attach(integrations=[HttpClients()])
    assert greeted(f"{address}/v1/realtime") == "hello"
    attachment.detach()
    assert (ClientProtocol.connect, ClientProtocol.process_response) == before
