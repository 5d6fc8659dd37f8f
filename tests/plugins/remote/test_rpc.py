"""Methods over HTTP: errors as what they are, restarts, keys, versions, long waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from agl_remote import _rpc as rpc
from agl_remote._peer import Patience, Peer
from agl_remote._rpc import RpcApp

from agl_core.errors import ConfigError, LeadHeldError, StaleAttemptError, StoreError
from agl_core.serving import (
    GuestServer,
    address_of,
    asgi,
    bind,
)


class Server:
    """A server that can be stopped and started again at its address."""

    def __init__(self, methods, key="k"):
        self.methods, self.key = methods, key
        self.lives = 0
        self.port = 0
        self.url = ""

    async def start(self):
        self.lives += 1
        app = RpcApp(self.methods, key=self.key, instance=f"life-{self.lives}")
        self.app = app
        listener = bind("127.0.0.1", self.port)
        self.url, self.port = address_of(listener), listener.getsockname()[1]
        self.server = GuestServer(app)
        await self.server.start(listener)

    async def stop(self):
        await self.server.stop()


@pytest.fixture
async def serve():
    started = []

    async def make(methods, key="k"):
        server = Server(methods, key)
        await server.start()
        started.append(server)
        return server

    yield make
    for server in started:
        await server.stop()


@pytest.fixture
async def peer():
    made = []

    def make(url, key="k", patience_s=20.0):
        one = Peer(url, key, what="store", error=StoreError, patience=Patience(seconds=patience_s))
        made.append(one)
        return one

    yield make
    for one in made:
        await one.close()


async def echo(request):
    return {"body": request.body.decode(), "retry": request.retry}


async def test_a_value_comes_back_as_its_type(serve, peer):
    server = await serve({"echo": echo})
    caller = peer(server.url)
    assert await caller.call("echo", b"hi", dict[str, str | int]) == {"body": "hi", "retry": 0}
    assert caller.instance == "life-1"


async def test_errors_arrive_as_what_they_are(serve, peer, caplog):
    async def stale(_):
        raise StaleAttemptError("attempt 'a' ended")

    async def broken(_):
        raise ZeroDivisionError

    async def held(_):
        raise LeadHeldError("first", 1e9)

    async def odd(_):
        raise StoreError("lone \ud83d")

    server = await serve({"stale": stale, "broken": broken, "held": held, "odd": odd})
    caller = peer(server.url)
    with pytest.raises(LeadHeldError) as refused:
        await caller.call("held", {}, None)
    assert (refused.value.holder, refused.value.until) == ("first", 1e9)
    assert str(refused.value) == str(LeadHeldError("first", 1e9))
    with pytest.raises(StoreError, match=r"lone \\ud83d"):
        await caller.call("odd", {}, None)
    with pytest.raises(StaleAttemptError, match="'a' ended"):
        await caller.call("stale", {}, None)
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        await caller.call("broken", {}, None)
    assert "A call failed inside the server" in caplog.text


async def test_wrong_key_other_version_and_unknown_method_are_not_retried(serve, peer, monkeypatch):
    server = await serve({"echo": echo})
    with pytest.raises(ConfigError, match="AGL_API_KEY"):
        await peer(server.url, key="other").call("echo", b"", None)
    with pytest.raises(ConfigError, match="no method"):
        await peer(server.url).call("nothing", b"", None)
    monkeypatch.setattr("agl_remote._peer.PROTOCOL", rpc.PROTOCOL + 1)
    with pytest.raises(ConfigError, match=r"speaks protocol 3, this server 2.*same version"):
        await peer(server.url).call("echo", b"", None)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8000", "localhost:8000", "ftp://x", "http://", "http://x:99999", ""]
)
def test_what_is_no_address_is_told_at_once(peer, address):
    with pytest.raises(ConfigError, match="is no address of a store: it looks like http://host"):
        peer(address)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>hello</html>", "malformed"),
        (200, b"[]", "Expected `object`"),
        (200, b"{}", "without a value"),
        (301, b"", "HTTP 301"),
        (404, b"not here", "HTTP 404"),
        (405, b'{"detail":"no POST"}', "HTTP 405"),
    ],
)
async def test_another_programs_server_is_told_at_once(peer, status, body, told):
    async def app(scope, receive, send):
        await asgi.read_body(receive)
        await asgi.respond(send, status, body)

    listener = bind("127.0.0.1", 0)
    server = GuestServer(app)
    await server.start(listener)
    try:
        with pytest.raises(ConfigError, match=rf"is no store of this .*{told}.*check the address"):
            await peer(address_of(listener)).call("echo", b"", dict[str, int])
    finally:
        await server.stop()


async def test_a_busy_server_is_asked_again(peer):
    statuses = [503, 429, 200]

    async def app(scope, receive, send):
        await asgi.read_body(receive)
        await asgi.respond(send, statuses.pop(0), b'{"ok":1}')

    listener = bind("127.0.0.1", 0)
    server = GuestServer(app)
    await server.start(listener)
    try:
        assert await peer(address_of(listener)).call("echo", b"", int) == 1
    finally:
        await server.stop()


async def test_a_call_survives_a_restart(serve, peer, caplog):
    reached, lives = asyncio.Event(), []

    async def once(request):
        lives.append(request.retry)
        if len(lives) == 1:
            reached.set()
            await asyncio.Event().wait()
        return "done"

    server = await serve({"once": once})
    caller = peer(server.url)
    call = asyncio.create_task(caller.call("once", {}, str))
    await reached.wait()
    await server.stop()
    await server.start()
    assert await call == "done"
    assert lives[0] == 0
    assert lives[-1] > 0
    assert caller.instance == "life-2"
    assert "is away" in caplog.text


@pytest.mark.parametrize("pulse_s", [20.0, 0.01])
async def test_a_server_that_ends_has_its_calls_sent_again(serve, peer, monkeypatch, pulse_s):
    monkeypatch.setattr(rpc, "PULSE_S", pulse_s)
    reached, seen = asyncio.Event(), []

    async def once(request):
        seen.append(request)
        if request.retry == 0:
            reached.set()
            await asyncio.Event().wait()
        return "done"

    server = await serve({"once": once})
    call = asyncio.create_task(peer(server.url).call("once", {}, str))
    await reached.wait()
    await asyncio.wait({call}, timeout=0.05)
    server.app.close()
    await server.stop()
    await server.start()
    assert await call == "done"
    assert seen[0].waited_s < seen[-1].waited_s


async def test_patience_begins_anew_whenever_the_server_was_there(serve, peer, monkeypatch):
    monkeypatch.setattr(rpc, "PULSE_S", 0.01)
    now = iter(range(0, 10**9, 1000))
    monkeypatch.setattr("agl_remote._peer.monotonic", lambda: float(next(now)))

    async def held(request):
        if request.retry >= 3:
            return "done"
        asyncio.get_running_loop().call_later(0.1, server.app.close)
        return await asyncio.Event().wait()

    server = await serve({"held": held})
    call = asyncio.create_task(peer(server.url, patience_s=2500.0).call("held", {}, str))
    while not call.done():
        server.app._closed = False
        await asyncio.wait({call}, timeout=0.01)
    assert await call == "done"


async def test_a_server_that_stays_away_is_an_error(peer):
    listener = bind("127.0.0.1", 0)
    url = address_of(listener)
    listener.close()
    with pytest.raises(StoreError, match="has been away"):
        await peer(url, patience_s=0.1).call("echo", b"", None)


@pytest.fixture
def clock(monkeypatch):
    """The callers' clock; it stands, but for an hour a pause."""
    clock = SimpleNamespace(now=0.0)

    async def pause(_):
        clock.now += 3600.0
        await asyncio.sleep(0)

    monkeypatch.setattr("agl_remote._peer.monotonic", lambda: clock.now)
    own = SimpleNamespace(sleep=pause, TimeoutError=asyncio.TimeoutError)
    monkeypatch.setattr("agl_remote._peer.asyncio", own)
    return clock


async def test_an_absence_is_waited_out_once_for_all_calls(serve, peer, clock, caplog):
    server = await serve({"echo": echo})
    caller = peer(server.url, patience_s=10_000.0)
    await server.stop()
    for _ in range(3):
        with pytest.raises(StoreError, match="away for 10800 s"):
            await caller.call("echo", b"", None)
        assert clock.now == 3 * 3600.0
    assert caplog.text.count("is away") == 1
    await server.start()
    assert (await caller.call("echo", b"", dict[str, str | int]))["retry"] == 0
    await server.stop()
    with pytest.raises(StoreError, match="away for 10800 s"):
        await caller.call("echo", b"", None)
    assert clock.now == 6 * 3600.0


async def test_an_absence_that_nobody_looked_at_for_long_may_have_ended(peer, clock):
    listener = bind("127.0.0.1", 0)
    url = address_of(listener)
    listener.close()
    caller = peer(url, patience_s=10_000.0)
    with pytest.raises(StoreError, match="away for 10800 s"):
        await caller.call("echo", b"", None)
    clock.now += 10_001.0
    with pytest.raises(StoreError, match="away for 10800 s"):
        await caller.call("echo", b"", None)


async def test_a_method_that_never_answers_is_an_error_though_others_do(serve, peer, clock):
    async def app(scope, receive, send):
        await asgi.read_body(receive)
        status = 503 if scope["path"].endswith("broken") else 200
        await asgi.respond(send, status, b'{"ok":1}')

    listener = bind("127.0.0.1", 0)
    server = GuestServer(app)
    await server.start(listener)
    caller = peer(address_of(listener), patience_s=10_000.0)
    broken = asyncio.create_task(caller.call("broken", b"", int))
    try:
        while not broken.done():
            assert await caller.call("sound", b"", int) == 1
        with pytest.raises(StoreError, match="HTTP 503"):
            await broken
    finally:
        await server.stop()


async def test_a_long_call_shows_signs_of_life_and_is_pushed(serve, monkeypatch):
    monkeypatch.setattr(rpc, "PULSE_S", 0.01)
    finish = asyncio.Event()

    async def long(_):
        await finish.wait()
        return 7

    server = await serve({"long": long})
    headers = {"Authorization": "Bearer k", rpc.HEADER_PROTOCOL: str(rpc.PROTOCOL)}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}{asgi.RPC_PREFIX}long", data=b"", headers=headers) as response,
    ):
        assert (await response.content.readany()).strip() == b""
        finish.set()
        assert (await response.read()).strip() == b'{"ok":7}'


async def test_a_caller_that_leaves_ends_the_call(serve, peer):
    reached, ended = asyncio.Event(), asyncio.Event()

    async def long(_):
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server = await serve({"long": long})
    call = asyncio.create_task(peer(server.url).call("long", {}, None))
    await reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(ended.wait(), 100)


async def test_a_caller_that_leaves_a_long_call_ends_it_before_the_next_sign_of_life(
    serve, monkeypatch
):
    """A connection that only ends what it sends is kept: it is written to, and breaks."""
    ended, waits = asyncio.Event(), []
    wait = asyncio.wait

    async def one_pulse(tasks, *, timeout=None, **options):  # noqa: ASYNC109
        waits.append(timeout)
        return await wait(tasks, timeout=0.0 if len(waits) == 1 else None, **options)

    async def long(_):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server = await serve({"long": long})
    monkeypatch.setattr(rpc.asyncio, "wait", one_pulse)
    headers = {"Authorization": "Bearer k", rpc.HEADER_PROTOCOL: str(rpc.PROTOCOL)}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}{asgi.RPC_PREFIX}long", data=b"", headers=headers) as response,
    ):
        assert (await response.content.readany()).strip() == b""
    await ended.wait()
    assert len(waits) == 2
