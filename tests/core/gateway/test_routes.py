"""Routes that plugins add to a gateway."""

from __future__ import annotations

import pytest

from agl_core.errors import PluginError
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.interfaces import RouteAnswer
from agl_core.store.memory import MemoryStore
from tests.core.gateway.conftest import OPERATOR, OPTIONS, World


class Echo:
    """Answers with who asks, and what."""

    operators = False

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
    operators = True

    async def serve(self, request):
        return RouteAnswer(body=b"true" if request.named else b"false")


@pytest.fixture
async def world():
    world = World()
    try:
        await world.start(None, OPTIONS)
        await world.gateway.stop()
        routes = {"PUT /echo": Echo, "GET /open": OpenToOperators}
        world.gateway = GatewayServer(world.store, OPTIONS, routes=routes)
        await world.gateway.start()
        world.stack.push_async_callback(world.gateway.stop)
        yield world
    finally:
        await world.stack.aclose()


async def ask(world, method, path, headers, data=b"hi"):
    url = f"{world.gateway.url}/v1{path}"
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
