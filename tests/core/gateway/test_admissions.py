"""Checks of plugins before the gateway accepts a model request."""

from __future__ import annotations

import pytest

from agl_core.gateway import GatewayServer
from agl_core.interfaces import Problem
from tests.core.gateway.conftest import DIALECTS, OPTIONS, ROUTES


class Guard:
    """Refuses everybody while it is shut."""

    def __init__(self):
        self.asked = []
        self.shut = False
        self.on_asked = None
        self.closed = 0

    async def admit(self, identity, *, key, address, policy):
        self.asked.append((identity.known_as, key, address, policy))
        if self.on_asked is not None:
            await self.on_asked()
        if self.shut:
            problem = Problem(429, "rate_limited", "too many", retry=True)
            problem.headers = {"retry-after": "7", "x-bad": "a\nb"}
            raise problem

    async def close(self):
        self.closed += 1


@pytest.fixture
async def guarded(make_world):
    world = await make_world()
    await world.gateway.stop()
    world.guards = Guard(), Guard()
    world.gateway = GatewayServer(
        world.store, OPTIONS, routes=ROUTES, dialects=DIALECTS, admissions=world.guards
    )
    world.stack.push_async_callback(world.gateway.stop)
    await world.route("trained", ("writer",), trainable=True)
    await world.route("frozen", ("*",), trainable=False)
    await world.gateway.start()
    return world


async def test_a_check_gets_agent_key_address_and_policy(guarded):
    attempt = await guarded.attempt()
    await guarded.ask(attempt)
    await guarded.ask(attempt, agent="judge")
    key = guarded.gateway.attempt_key(attempt.rollout_id, attempt.id)
    expected = [("writer", key, "127.0.0.1", "trained"), ("judge", key, "127.0.0.1", "frozen")]
    assert [guard.asked for guard in guarded.guards] == [expected, expected]
    assert [call.status_code for call in await guarded.calls(attempt)] == [200, 200]


async def test_a_refused_request_gets_the_headers_and_is_recorded(guarded):
    attempt = await guarded.attempt()
    first, second = guarded.guards
    first.shut = True
    for path in ("/v1/chat/completions", "/v1/responses"):
        body = {"input": "hi"} if path.endswith("responses") else {}
        async with guarded.post(guarded.headers(attempt), path=path, **body) as answer:
            assert answer.status == 429
            assert answer.headers["retry-after"] == "7"
            assert answer.headers["x-should-retry"] == "true"
            assert answer.headers["x-bad"] == "a b"
            assert (await answer.json())["error"]["code"] == "rate_limited"
    assert len(first.asked) == 2
    assert not second.asked
    assert not guarded.server.log
    calls = await guarded.calls(attempt)
    assert [(call.status_code, call.error) for call in calls] == [
        (429, "rate_limited: too many")
    ] * 2


async def test_a_retry_that_is_accepted_supersedes_the_refusal(guarded):
    attempt = await guarded.attempt()
    guarded.guards[1].shut = True
    headers = guarded.headers(attempt, call="call-1")
    async with guarded.post(headers) as answer:
        assert answer.status == 429
    guarded.guards[1].shut = False
    async with guarded.post(headers) as answer:
        assert answer.status == 200
    calls = await guarded.calls(attempt)
    assert [(call.status_code, call.superseded, call.tries) for call in calls] == [
        (429, True, 1),
        (200, False, 2),
    ]


async def test_an_attempt_that_ends_during_a_check_is_late(guarded):
    attempt = await guarded.attempt()

    async def seal():
        await guarded.gateway.seal(attempt.id)

    guarded.guards[0].on_asked = seal
    async with guarded.post(guarded.headers(attempt)) as answer:
        assert answer.status == 410
    assert guarded.gateway.losses.counts == {"late_calls": 1}


async def test_only_model_requests_with_a_key_are_checked(guarded):
    attempt = await guarded.attempt()
    headers = guarded.headers(attempt)
    async with guarded.session.get(f"{guarded.gateway.url}/health") as answer:
        assert answer.status == 200
    async with guarded.session.get(f"{guarded.gateway.url}/v1/models", headers=headers) as answer:
        assert answer.status == 200
    async with guarded.post({**headers, "Authorization": "Bearer wrong"}) as answer:
        assert answer.status == 401
    assert not guarded.guards[0].asked


async def test_the_gateway_closes_its_checks(guarded):
    await guarded.gateway.stop()
    await guarded.gateway.stop()
    assert [guard.closed for guard in guarded.guards] == [1, 1]


async def test_records_are_written_although_a_check_cannot_be_closed(guarded, monkeypatch):
    events, stop = [], guarded.gateway._recording.stop

    async def written():
        events.append("written")
        await stop()

    async def gone():
        events.append("closed")
        raise ConnectionError("gone")

    monkeypatch.setattr(guarded.gateway._recording, "stop", written)
    monkeypatch.setattr(guarded.guards[0], "close", gone)
    with pytest.raises(ConnectionError, match="gone"):
        await guarded.gateway.stop()
    assert events == ["written", "closed"]
