"""Routes that plugins add to a gateway."""

from __future__ import annotations

from typing import ClassVar

import pytest

from agl_core.errors import PluginError
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.interfaces import Access, RouteAnswer
from agl_core.store._memory import MemoryStore
from tests.core.gateway.conftest import OPERATOR, OPTIONS, World


class Echo:
    """Answers with who asks, and what."""

    access: Access = "agents"

    def __init__(self, store, losses):
        self.losses = losses

    async def serve(self, request):
        identity = request.identity()
        request.admit(identity.rollout_id, identity.attempt_id)
        self.losses.add("echoed")
        body = await request.body(largest=5, advice="send less")
        named = f"{identity.agent} {request.headers['x-more']} ".encode()
        return RouteAnswer(body=named + body, status=201, content_type="text/plain")


class OpenToOperators(Echo):
    access: Access = "both"

    async def serve(self, request):
        return RouteAnswer(body=b"true" if request.named else b"false")


class Watching(Echo):
    """Serves operators only, and observes records; it fails on the first one."""

    access: Access = "operators"
    seen: ClassVar = []

    def recorded(self, span):
        self.seen.append(span)
        if len(self.seen) == 1:
            raise RuntimeError("broken")

    async def serve(self, request):
        return RouteAnswer(body=f"{request.in_flight} {request.open_attempts}".encode())


@pytest.fixture
async def world():
    world = World()
    try:
        await world.start(None, OPTIONS)
        await world.gateway.stop()
        routes = {"PUT /echo": Echo, "GET /open": OpenToOperators, "GET /watch": Watching}
        world.gateway = GatewayServer(world.store, OPTIONS, routes=routes)
        await world.route("trained", ("*",), trainable=True)
        await world.gateway.start()
        world.stack.push_async_callback(world.gateway.stop)
        yield world
    finally:
        await world.stack.aclose()


async def ask(world, method, path, headers, data=b"hi", *, prefix="/v1"):
    url = f"{world.gateway.url}{prefix}{path}"
    async with world.session.request(method, url, headers=headers, data=data) as answer:
        return answer.status, answer.content_type, await answer.read()


async def test_a_route_is_served_to_who_has_the_key_of_the_attempt(world):
    attempt = await world.attempt()
    headers = {**world.headers(attempt), "X-More": "asks"}
    assert await ask(world, "PUT", "/echo", headers) == (201, "text/plain", b"writer asks hi")
    assert world.gateway.losses.counts == {"echoed": 1}
    assert (await ask(world, "POST", "/echo", headers))[0] == 404
    assert (await ask(world, "PUT", "/echo", {**headers, **OPERATOR}))[0] == 401
    status, _, body = await ask(world, "PUT", "/echo", headers, b"123456")
    assert (status, b"more than 5 bytes: send less" in body) == (413, True)


async def test_a_route_for_operators_takes_their_key(world):
    assert (await ask(world, "GET", "/open", OPERATOR))[2] == b"false"
    assert (await ask(world, "GET", "/open", {"Authorization": "Bearer x"}))[0] == 401
    attempt = await world.attempt()
    assert (await ask(world, "GET", "/open", world.headers(attempt)))[2] == b"true"


async def test_a_route_for_operators_only_is_served_beside_v1(world):
    attempt = await world.attempt()
    own = world.headers(attempt)
    assert await ask(world, "GET", "/watch", OPERATOR, prefix="") == (
        200,
        "application/json",
        b"0 1",
    )
    status, _, body = await ask(world, "GET", "/watch", own, prefix="")
    assert (status, b"operators' key" in body) == (401, True)
    assert (await ask(world, "GET", "/watch", own))[0] == 404
    assert (await ask(world, "POST", "/watch", own, prefix=""))[0] == 404
    assert (await ask(world, "GET", "/open", own, prefix=""))[0] == 404


async def test_a_route_observes_every_record_and_its_errors_reach_no_client(world, caplog):
    Watching.seen = []
    attempt = await world.attempt()
    for _ in range(2):
        await world.ask(attempt)
    calls = await world.calls(attempt)
    assert [span.call.id for span in Watching.seen] == [call.id for call in calls]
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert calls[0].id in logged.message


@pytest.mark.parametrize("path", ["/health", "/agl/v1/x", "/v1/x", "/r/a/a/b/v1/x"])
def test_a_path_for_operators_only_hides_no_path_of_the_gateway(path):
    with pytest.raises(PluginError, match="for operators only"):
        GatewayServer(MemoryStore(), GatewayOptions(), routes={f"GET {path}": Watching})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("POST /chat/completions", "end in /completions are model requests"),
        ("POST /x/responses", "end in /responses are model requests"),
        ("POST /inbox/messages", "end in /messages are model requests"),
        ("GET /models", "itself"),
        ("traces", "method and a path"),
        ("post /traces", "method and a path"),
    ],
)
def test_a_route_that_would_never_be_asked_or_hide_a_model_is_refused(name, reason):
    with pytest.raises(PluginError, match=reason):
        GatewayServer(MemoryStore(), GatewayOptions(), routes={name: Echo})
