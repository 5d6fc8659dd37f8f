"""A served store over connections that break, stall and come back."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from agl_remote import HttpStore, StoreServer
from agl_remote import _peer as peer
from agl_remote import _rpc as rpc
from agl_remote._peer import Patience
from agl_remote._store_calls import Claiming
from agl_testing._store_samples import begin, rollout, span, succeed

from agl_core.errors import ConfigError, LeadHeldError, StaleAttemptError, StoreError
from agl_core.serving import GuestServer, address_of, bind
from agl_core.store import _operations as operations
from agl_core.store import encode
from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore
from agl_core.store._waiting import SystemClock
from agl_core.types import (
    AttemptStatus,
    Ingest,
    Limits,
    Resources,
    RolloutQuery,
    RolloutStatus,
)

KEY = "key"


class Line:
    """A line to a server that loses answers, holds them back or lets the server be moved."""

    def __init__(self):
        self.target = ("", 0)
        self.lost = 0
        """How many of the next answers to lose, with their connections."""
        self.hold = None
        """Event until which answers stay on the way."""
        self.on_loss = None
        self.answered = asyncio.Event()
        """The server has answered something that did not arrive yet."""
        self.tasks = set()

    async def start(self):
        self.listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.listener.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"

    async def stop(self):
        self.listener.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        there = asyncio.create_task(self._carry(reader, up_writer))
        try:
            await self._answers(up_reader, writer)
        finally:
            there.cancel()
            for one in (writer, up_writer):
                one.close()

    async def _carry(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def _answers(self, reader, writer):
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.lost:
                    self.lost -= 1
                    if self.on_loss is not None:
                        await self.on_loss()
                    return
                if self.hold is not None:
                    self.answered.set()
                    await self.hold.wait()
                writer.write(data)


class Place:
    """A store's file, its server, and a line to it."""

    def __init__(self, path, line):
        self.path, self.line = path, line

    async def start(self):
        self.server = StoreServer(SqliteStore(self.path, orphans="keep"), key=KEY)
        await self.server.start()
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        self.line.target = (host, int(port))

    async def restart(self):
        await self.server.stop()
        await self.start()

    async def client(self, url=None, **options):
        store = HttpStore(url or self.server.url, KEY, **options)
        await store.open()
        return store


@pytest.fixture
async def line():
    line = Line()
    await line.start()
    yield line
    await line.stop()


@pytest.fixture
async def place(tmp_path, line):
    place = Place(tmp_path / "store.db", line)
    await place.start()
    yield place
    await place.server.stop()


@pytest.fixture
async def store(place, line):
    """A client behind the line."""
    store = await place.client(line.url)
    yield store
    await store.close()


async def attempts(store):
    return [len(one.attempts) for one in await store.rollouts(RolloutQuery())]


@pytest.mark.parametrize("restarts", [False, True])
async def test_every_write_bears_that_its_answer_is_lost(place, store, line, restarts):
    line.on_loss = place.restart if restarts else None

    def lose():
        line.lost = 1

    queued = [rollout() for _ in range(3)]
    lose()
    assert [one.id for one in await store.enqueue(queued)] == [one.id for one in queued]
    lose()
    first, second = await store.claim("w", limit=2)
    assert await attempts(store) == [1, 1, 0]
    assert [one.attempt.worker for one in (first, second)] == ["w", "w"]
    spans = [span(first, sequence=n) for n in range(3)]
    lose()
    assert await store.add_spans(spans) == Ingest(duplicate=3)
    lose()
    assert await store.heartbeat([first.attempt.id, "at_none"]) == ["at_none"]
    last = span(first, sequence=3)
    lose()
    ended = await store.finish(first.attempt.id, status=AttemptStatus.SUCCEEDED, spans=[last])
    assert ended.status is AttemptStatus.SUCCEEDED
    assert await store.spans([first.rollout.id]) == [*spans, last]
    lose()
    await store.consume([first.rollout.id])
    lose()
    (cancelled,) = await store.cancel([second.rollout.id], reason="no")
    assert cancelled.status is RolloutStatus.CANCELLED
    lose()
    published = await store.publish(Resources(run_id="run"))
    assert published.version == 1
    assert await store.resources() == published
    lose()
    await store.lead("one", lease_s=60)
    lose()
    with pytest.raises(LeadHeldError, match="one"):
        await store.lead("two", lease_s=60)
    lose()
    (waited,) = await store.wait([first.rollout.id])
    assert waited.consumed
    assert line.lost == 0


async def test_a_lost_claim_is_given_to_the_same_caller_alone(place, store, line):
    """Others' claims between the loss and the repetition are theirs."""
    other = await place.client()
    theirs = []

    async def meanwhile():
        theirs.extend(await other.claim("w", limit=5, timeout_s=0))

    await other.enqueue([rollout() for _ in range(4)])
    line.lost, line.on_loss = 1, meanwhile
    mine = await store.claim("w", limit=2)
    assert len(mine) == len(theirs) == 2
    assert len({one.rollout.id for one in (*mine, *theirs)}) == 4
    await other.close()


async def test_what_a_caller_was_handed_as_it_left_is_queued_again(place, store, line):
    other = await place.client()
    await other.enqueue([rollout()])
    line.hold = asyncio.Event()
    leaving = asyncio.create_task(store.claim("leaver"))
    await line.answered.wait()
    assert await attempts(other) == [1]
    line.hold.set()
    line.hold = None
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    (claim,) = await other.claim("w", timeout_s=100)
    assert claim.attempt.worker == "w"
    await other.close()


async def test_a_store_that_closes_hands_back_what_it_waited_for(place, store):
    other = await place.client()
    waiting = [asyncio.create_task(store.claim("leaver")) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0.05)
    await store.close()
    for task in waiting:
        with pytest.raises(StoreError, match="closed"):
            await task
    await other.enqueue([rollout() for _ in range(3)])
    assert len(await other.claim("w", limit=3, timeout_s=100)) == 3
    await other.close()


async def test_a_handed_back_claim_that_comes_late_gets_nothing(place, store):
    """Its own request may be overtaken by the one that takes it back."""
    await store.enqueue([rollout()])
    server = place.server
    await server._hand_back(["cl_1"], rpc.RpcRequest(b"", 0))
    asked = Claiming(worker="w", limit=1, timeout_s=None, claim_id="cl_1")
    assert await server._claim(asked, rpc.RpcRequest(b"", 0)) == []
    assert len(await store.claim("w", timeout_s=0)) == 1


async def test_a_line_that_goes_silent_leaves_no_claim_behind(place, store, line, monkeypatch):
    """The server still holds the first request while its caller repeats it."""
    monkeypatch.setattr(peer, "_SILENCE_S", 0.3)
    monkeypatch.setattr(rpc, "PULSE_S", 0.02)
    other = await place.client()
    line.hold = silent = asyncio.Event()
    claiming = asyncio.create_task(store.claim("w"))
    await line.answered.wait()
    line.hold = None
    pending = place.server._handing_out
    (first,) = pending.values()
    await asyncio.wait({first}, timeout=100)
    assert first.cancelled()
    await other.enqueue([rollout()])
    (claim,) = await asyncio.wait_for(claiming, 100)
    await succeed(store, claim)
    assert await attempts(other) == [1]
    silent.set()
    await other.close()


async def test_timeouts_count_from_the_first_try(place, store, line, monkeypatch):
    claim = await begin(store)
    reached = asyncio.Event()
    local = place.server._store

    async def wait(ids, *, timeout_s):
        reached.set()
        return await SqliteStore.wait(local, ids, timeout_s=timeout_s)

    monkeypatch.setattr(local, "wait", wait)
    now = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(peer, "monotonic", lambda: float(next(now)))
    patient = await place.client(line.url, patience=Patience(seconds=1e9))
    waiting = asyncio.create_task(patient.wait([claim.rollout.id], timeout_s=500))
    await reached.wait()
    await place.restart()
    assert await asyncio.wait_for(waiting, 100) == []
    await patient.close()


async def test_held_calls_outlive_a_restart(place, store, line):
    running = await begin(store)
    waiting = asyncio.create_task(store.wait([running.rollout.id]))
    claiming = asyncio.create_task(store.claim("w"))
    await asyncio.wait({waiting, claiming}, timeout=0.05)
    await place.restart()
    await store.enqueue([rollout()])
    (claim,) = await asyncio.wait_for(claiming, 100)
    await succeed(store, running)
    (ended,) = await asyncio.wait_for(waiting, 100)
    assert ended.status is RolloutStatus.SUCCEEDED
    await succeed(store, claim)


async def test_a_cancelled_caller_does_not_stop_its_write(store, line):
    claim = await begin(store)
    line.hold = asyncio.Event()
    finishing = asyncio.create_task(succeed(store, claim))
    await asyncio.sleep(0)
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)
    line.hold.set()
    assert len(await store.wait([claim.rollout.id], timeout_s=100)) == 1


async def test_errors_are_those_of_a_local_store(store):
    claim = await begin(store, limits=Limits(max_attempts=1))
    await succeed(store, claim)
    with pytest.raises(StaleAttemptError, match=claim.attempt.id):
        await store.finish(claim.attempt.id, status=AttemptStatus.CANCELLED)
    endless = []
    endless.append(endless)
    with pytest.raises(StoreError, match="contains itself"):
        await store.enqueue([rollout(metadata={"endless": endless})])
    with pytest.raises(StoreError, match="seed"):
        await store.enqueue([rollout(seed="no number")])


async def test_the_server_sends_stored_spans_without_decoding_them(store, place, monkeypatch):
    claim = await begin(store)
    sent = [span(claim, sequence=2), span(claim, sequence=1, attributes={"text": "\ud800"})]
    await store.add_spans(sent)
    monkeypatch.setattr(operations, "SPANS", None)
    ids = [claim.rollout.id]
    assert await store.spans(ids) == [sent[1], sent[0]]
    damaged = encode({"id": "span_0", "attributes": []})
    await place.server._store.write(
        lambda records: records.add_spans(claim.attempt.id, [("span_0", damaged)])
    )
    with pytest.raises(StoreError, match="stored Span cannot be read"):
        await store.spans(ids)


class Skewed(SystemClock):
    """Of a machine whose clock is wrong."""

    def __init__(self, ahead_s):
        self.ahead_s = ahead_s

    def now(self):
        return super().now() + self.ahead_s


@pytest.mark.parametrize("ahead_s", [-1000.0, 0.0, 1000.0])
async def test_a_claims_times_are_those_of_the_clock_here(tmp_path, monkeypatch, ahead_s):
    clock = Skewed(ahead_s)
    monkeypatch.setattr(rpc, "wall", clock.now)
    server = StoreServer(SqliteStore(tmp_path / "store.db", clock=clock), key=KEY)
    await server.start()
    store = HttpStore(server.url, KEY)
    await store.open()
    try:
        began = time.time()
        await store.enqueue([rollout(limits=Limits(timeout_s=500.0, lease_s=50.0))])
        (claim,) = await store.claim("w")
        took_s = time.time() - began
        attempt = claim.attempt
        assert claim.rollout.attempts == (attempt,)
        assert attempt.started_at == pytest.approx(began, abs=2 * took_s + 1e-3)
        assert attempt.deadline_at - attempt.started_at == pytest.approx(500.0)
        assert attempt.lease_until - attempt.started_at == pytest.approx(50.0)
        (kept,) = await store.rollouts(RolloutQuery())
        assert kept.attempts[0].started_at == pytest.approx(attempt.started_at + ahead_s, abs=60)
        if not ahead_s:
            assert kept.attempts[0] == attempt
    finally:
        await store.close()
        await server.stop()


async def test_spans_are_deleted_over_the_line_where_the_store_can(place, store):
    claim = await begin(store)
    await succeed(store, claim, [span(claim)])
    pruned = await store.prune([claim.rollout.id, "unknown"])
    assert (pruned.rollouts, pruned.spans, pruned.kept) == (1, 1, 0)
    assert await store.spans([claim.rollout.id]) == []
    server = StoreServer(MemoryStore(), key=KEY)
    await server.start()
    try:
        with pytest.raises(ConfigError, match="A MemoryStore that is served deletes nothing"):
            await HttpStore(server.url, KEY).prune([claim.rollout.id])
    finally:
        await server.stop()


async def test_who_may_not_come_in_is_told_at_once(place, monkeypatch):
    with pytest.raises(ConfigError, match=r"store at http.*wrong key.*AGL_API_KEY"):
        await HttpStore(place.server.url, "other").open()
    monkeypatch.setattr(peer, "PROTOCOL", rpc.PROTOCOL + 1)
    with pytest.raises(ConfigError, match="install the same version"):
        await HttpStore(place.server.url, KEY).open()


async def test_an_address_of_something_else_is_named(place):
    listener = bind("127.0.0.1", 0)
    server = GuestServer(rpc.RpcApp({}, key=KEY, instance="gateway"))
    await server.start(listener)
    with pytest.raises(ConfigError, match="no method"):
        await HttpStore(address_of(listener), KEY).open()
    await server.stop()


async def test_a_server_that_stays_away_is_named(tmp_path):
    listener = bind("127.0.0.1", 0)
    url = address_of(listener)
    listener.close()
    store = HttpStore(url, KEY, patience=Patience(seconds=0.1))
    with pytest.raises(StoreError, match=f"{url} has been away"):
        await store.open()
    with pytest.raises(StoreError, match="not open"):
        await store.enqueue([rollout()])


async def test_a_taken_port_leaves_the_file_alone(place, tmp_path):
    port = int(place.server.url.rpartition(":")[2])
    path = tmp_path / "other.db"
    with pytest.raises(ConfigError, match=f"Cannot listen on 127.0.0.1:{port}"):
        await StoreServer(SqliteStore(path), key=KEY, port=port).start()
    assert not path.exists()


async def test_a_file_that_cannot_be_opened_frees_the_port(tmp_path):
    path = tmp_path / "store.db"
    path.write_bytes(b"no database, but long enough to be read as a header of one" * 20)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="not a store"):
            await StoreServer(SqliteStore(path), key=KEY, port=port).start()
