"""A gateway as a server: desired states, restarts, attempts that outlive it, its losses."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack

import aiohttp
import httpx
import pytest
from agl_endpoints import HttpBackend
from agl_remote import RemoteGateway
from agl_remote import _rpc as rpc
from agl_remote._gateway_control import GatewayControl, GatewayStatus, WatchRequest
from agl_remote._peer import Patience
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

from agl_core.clocks import new_id
from agl_core.errors import (
    ConfigError,
    EngineError,
    MissingTokensError,
    StaleAttemptError,
    StoreError,
)
from agl_core.gateway import (
    GatewayOptions,
    GatewayServer,
    RecordingOptions,
)
from agl_core.interfaces import Backend, Capabilities, GatewayUse
from agl_core.serving import AttemptKeys
from agl_core.store._memory import MemoryStore
from agl_core.types import Limits, Policy, Rollout, Task

KEY = "shared"
KEYS = AttemptKeys(KEY)
QUICK = RecordingOptions(interval_s=0.01, settle_s=0.0)
ASK = {"model": "trained", "messages": [{"role": "user", "content": "hi"}]}
TRAINED = Policy(name="trained", agents=("writer",), trainable=True, version=1)


class Site:
    """One address at which gateways live one after the other, over one store."""

    def __init__(self):
        self.stack = AsyncExitStack()
        self.store = MemoryStore()
        self.port = 0
        self.control = None

    async def start(self, options=None):
        await self.store.open()
        self.stack.push_async_callback(self.store.close)
        self.model = await self.stack.enter_async_context(FakeOpenAI(options=options))
        self.backend = HttpBackend(self.model.base_url, model="weights")
        self.stack.push_async_callback(self.backend.close)
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())
        await self.live()
        self.stack.push_async_callback(self.die)

    async def live(self):
        options = GatewayOptions(port=self.port, recording=QUICK, secret=KEY, restartable=True)
        self.gateway = GatewayServer(self.store, options)
        self.control = GatewayControl(self.gateway, KEY)
        await self.control.start()
        self.url = self.gateway.url
        self.port = int(self.url.rpartition(":")[2])

    async def die(self):
        control, self.control = self.control, None
        if control is not None:
            await control.stop()

    async def remote(self, *, key=KEY, patience=None, **use):
        patience = patience or Patience(seconds=20.0)
        remote = RemoteGateway(self.url, key, GatewayUse(**use), patience=patience)
        self.stack.push_async_callback(remote.stop)
        await remote.start()
        return remote

    async def trainer(self, **options):
        remote = await self.remote(**options)
        await remote.route(TRAINED, self.backend)
        return remote

    async def claim(self, **rollout):
        row = Rollout(
            id=new_id("ro"),
            task=Task(id="t"),
            run_id="run",
            **{"limits": Limits(timeout_s=600.0, lease_s=600.0), **rollout},
        )
        await self.store.enqueue([row])
        (claim,) = await self.store.claim("w", timeout_s=100)
        return claim

    def call(self, claim, *, key=None, **body):
        headers = {
            "Authorization": f"Bearer {key or KEYS.of(claim.rollout.id, claim.attempt.id)}",
            "x-agl-rollout": claim.rollout.id,
            "x-agl-attempt": claim.attempt.id,
            "x-agl-agent": "writer",
        }
        url = f"{self.url}/v1/chat/completions"
        return self.session.post(url, json={**ASK, **body}, headers=headers)

    async def ask(self, claim, **body):
        async with self.call(claim, **body) as answer:
            return answer.status, await answer.json()

    async def calls(self, claim):
        spans = await self.store.spans([claim.rollout.id], attempt_id=claim.attempt.id)
        return [span.call for span in spans if span.call is not None]


async def until(condition):
    """Give the loop turns until something without an event of its own has happened."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.fixture
async def make_site():
    async with AsyncExitStack() as stack:

        async def make(options=None):
            site = Site()
            await stack.enter_async_context(site.stack)
            await site.start(options)
            return site

        yield make


@pytest.fixture
async def site(make_site):
    return await make_site()


async def test_a_run_over_a_gateway_that_is_another_process(site):
    trainer, runner = await site.trainer(), await site.remote()
    assert await trainer.probe("trained") == Capabilities(
        token_ids=True, stream_token_ids=True, logprobs="processed"
    )
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    await runner.open(claim.rollout, claim.attempt)
    status, _ = await site.ask(claim)
    assert status == 200
    assert await runner.seal(claim.attempt.id) == 1
    assert await runner.seal(claim.attempt.id) == 1
    with pytest.raises(StaleAttemptError):
        await runner.open(claim.rollout, claim.attempt)
    (call,) = await site.calls(claim)
    assert call.complete
    assert call.choices[0].token_ids.tolist() == site.model.log[-1].choices[0].token_ids
    assert (call.policy, call.policy_version, call.logprobs_mode) == ("trained", 1, "processed")


async def test_agents_cannot_give_orders_and_nobody_else_is_let_in(site):
    await site.trainer()
    claim = await site.claim()
    with pytest.raises(ConfigError, match="AGL_API_KEY"):
        await site.remote(key="wrong")
    with pytest.raises(ConfigError, match="AGL_API_KEY"):
        await site.remote(key=KEYS.client)
    for key in (KEY, "wrong"):
        async with site.call(claim, key=key) as answer:
            assert answer.status == 401


async def test_an_attempt_waits_until_a_trainer_serves(site):
    runner = await site.remote()
    claim = await site.claim()
    opening = asyncio.create_task(runner.open(claim.rollout, claim.attempt))
    trainer = await site.trainer()
    await opening
    assert (await site.ask(claim))[0] == 200
    await trainer.stop()
    late = await site.claim(limits=Limits(timeout_s=0.05))
    with pytest.raises(EngineError, match="see whether the trainer runs"):
        await runner.open(late.rollout, late.attempt)


async def test_a_restarted_gateway_is_given_all_orders_again(site, caplog):
    trainer, runner = await site.trainer(deterministic=True), await site.remote()
    await trainer.route(Policy(name="frozen", agents=("*",)), site.backend)
    await trainer.probe("trained")
    await trainer.pause()
    await site.die()
    await site.live()
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    held = asyncio.create_task(site.ask(claim))
    await until(lambda: site.gateway.in_flight)
    assert await trainer.drain(timeout_s=1.0) == 0
    await trainer.route(Policy(**{**_fields(TRAINED), "version": 2}), site.backend)
    assert not held.done()
    await trainer.resume()
    assert (await held)[0] == 200
    await runner.seal(claim.attempt.id)
    (call,) = await site.calls(claim)
    assert (call.policy_version, call.logprobs_mode) == (2, "processed")
    assert "sending the desired state again" in caplog.text
    assert (await trainer.lost()).counts == {"gateway_restarts": 1}


def _fields(policy):
    return {name: getattr(policy, name) for name in policy.__struct_fields__}


async def test_an_attempt_that_outlived_its_gateway_never_succeeds(site):
    await site.trainer()
    runner = await site.remote()
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    assert (await site.ask(claim))[0] == 200
    await site.die()
    await site.live()
    status, body = await site.ask(claim)
    assert status == 503
    assert body["error"]["code"] == "attempt_unknown"
    assert "restarted" in body["error"]["message"]
    assert site.gateway.losses.counts == {"late_calls": 1}
    for _ in range(2):
        with pytest.raises(EngineError, match=r"was restarted while attempt .* ran"):
            await runner.seal(claim.attempt.id)
    # One that was opened since is not concerned.
    fresh = await site.claim()
    await runner.open(fresh.rollout, fresh.attempt)
    assert (await site.ask(fresh))[0] == 200
    assert await runner.seal(fresh.attempt.id) == 1


async def test_a_gateway_whose_clock_differs_is_told_deadlines_in_its_own_time(site, monkeypatch):
    monkeypatch.setattr(rpc, "wall", lambda: time.time() + 1000.0)
    await site.trainer()
    runner = await site.remote()
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    there = site.gateway._attempts.find(claim.attempt.id).attempt
    assert there.deadline_at == pytest.approx(claim.attempt.deadline_at + 1000.0, abs=60)


async def test_a_seal_that_failed_can_be_repeated_and_one_that_was_cancelled_is_forgotten(
    site, monkeypatch
):
    await site.trainer()
    runner = await site.remote()
    claims = [await site.claim() for _ in range(3)]
    for claim in claims:
        await runner.open(claim.rollout, claim.attempt)
    failed, cancelled, again = (claim.attempt.id for claim in claims)
    seal, reached = site.gateway.seal, asyncio.Event()

    async def odd(attempt_id):
        if attempt_id == failed:
            raise EngineError("no")
        if attempt_id == again:
            raise StoreError("disk full")
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(site.gateway, "seal", odd)
    with pytest.raises(EngineError, match="no"):
        await runner.seal(failed)
    sealing = asyncio.create_task(runner.seal(cancelled))
    await reached.wait()
    sealing.cancel()
    await asyncio.wait({sealing})
    with pytest.raises(StoreError, match="disk full"):
        await runner.seal(again)
    assert set(runner._opened_at) == {failed, again}
    monkeypatch.setattr(site.gateway, "seal", seal)
    assert await runner.seal(failed) == 0
    assert await runner.seal(again) == 0
    assert not runner._opened_at


async def test_losses_are_summed_over_the_lives_of_a_gateway(site):
    site.gateway.losses.add("late_calls", 7)
    trainer = await site.trainer()
    assert (await trainer.lost()).counts == {}
    site.gateway.losses.add("late_calls", 2)
    assert (await trainer.lost()).counts == {"late_calls": 2}
    assert (await trainer.lost()).counts == {"late_calls": 2}
    await site.die()
    await site.live()
    site.gateway.losses.add("late_records")
    expected = {"late_calls": 2, "late_records": 1, "gateway_restarts": 1}
    assert (await trainer.lost()).counts == expected
    await site.die()
    impatient = await _unheard(site)
    assert impatient == {"gateway_unanswered": 1}


async def _unheard(site):
    await site.live()
    remote = await site.remote(patience=Patience(seconds=0.0))
    await site.die()
    counts = (await remote.lost()).counts
    await site.live()
    return counts


async def test_losses_arrive_without_being_asked_for(site, monkeypatch):
    monkeypatch.setattr("agl_remote._gateway_control._LOOK_S", 0.001)
    trainer = await site.trainer()
    site.gateway.losses.add("late_calls", 3)
    await until(lambda: trainer._losses.total().counts == {"late_calls": 3})


async def test_one_trainer_at_a_time(site, monkeypatch):
    monkeypatch.setattr("agl_remote._gateway_control._PATIENCE_S", 0.05)
    monkeypatch.setattr("agl_remote._gateway_control._ABSENT_S", 0.02)
    first, runner = await site.trainer(), await site.remote()
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    second = await site.remote()
    with pytest.raises(ConfigError, match=r"serves trainer_\w+, which is connected"):
        await second.route(TRAINED, site.backend)
    await first.pause()
    held = asyncio.create_task(site.ask(claim))
    await until(lambda: site.gateway.in_flight)
    first._watching.cancel()  # killed: its connection breaks, no farewell
    monkeypatch.setattr("agl_remote._gateway_control._PATIENCE_S", 20.0)
    await second.route(TRAINED, site.backend)
    status, body = await held
    assert (status, body["error"]["code"]) == (503, "gateway_stopped")
    assert (await site.ask(claim))[0] == 200


async def test_a_trainer_that_took_leave_is_not_waited_for(site, monkeypatch):
    """The next one starts at once, also where a connection of the first one stays open."""
    monkeypatch.setattr("agl_remote._gateway_control._LOOK_S", 600.0)
    monkeypatch.setattr("agl_remote._gateway_control._PATIENCE_S", 0.05)
    first, other = await site.trainer(), await site.remote()
    watching = WatchRequest(trainer=first._trainer, instance_id=site.control.instance_id, lost={})
    stays_open = asyncio.create_task(other._peer.call("watch", watching, GatewayStatus))
    await until(lambda: site.control._watches == 2)
    await first.stop()
    second, claim = await site.trainer(), await site.claim()
    await second.open(claim.rollout, claim.attempt)
    assert (await site.ask(claim))[0] == 200
    stays_open.cancel()


async def test_a_watch_that_arrives_after_the_leave_holds_nobody_up(site, monkeypatch):
    monkeypatch.setattr("agl_remote._gateway_control._PATIENCE_S", 0.05)
    first, other = await site.trainer(), await site.remote()
    await first.stop()
    watching = WatchRequest(trainer=first._trainer, instance_id=site.control.instance_id, lost={})
    assert (
        await other._peer.call("watch", watching, GatewayStatus)
    ).instance_id == site.control.instance_id
    await site.trainer()


async def test_a_trainer_that_was_succeeded_is_told_so(site, monkeypatch, caplog):
    monkeypatch.setattr("agl_remote._gateway_control._ABSENT_S", 0.02)
    first = await site.trainer()
    first._watching.cancel()  # its process was stopped for a while
    second = await site.trainer()
    first._watching = asyncio.create_task(first._watch())
    await until(lambda: "cannot be watched" in caplog.text)
    assert f"serves {second._trainer} now" in caplog.text
    with pytest.raises(ConfigError, match="is connected: end that one"):
        await first.pause()


async def test_a_gateway_keeps_no_connections_of_trainers_that_have_ended(site, monkeypatch):
    monkeypatch.setattr("agl_remote._gateway_control._ABSENT_S", 0.02)
    for number in range(3):
        trainer = await site.remote()
        backend = HttpBackend(site.model.base_url, model=f"weights-{number}")
        await trainer.route(TRAINED, backend)
        await trainer.probe("trained")
        assert len(site.control._backends) == 1
        await trainer.stop()
    assert not site.control._backends


async def test_states_that_come_while_connections_are_closed_are_taken(site, monkeypatch):
    trainer = await site.trainer()
    other = HttpBackend(site.model.base_url, model="other")
    await trainer.route(Policy(name="frozen", agents=("*",)), other)
    reached, go_on, close = asyncio.Event(), asyncio.Event(), HttpBackend.close

    async def slow(backend):
        reached.set()
        await go_on.wait()
        await close(backend)

    monkeypatch.setattr(HttpBackend, "close", slow)
    trainer._services.clear()
    first = asyncio.create_task(trainer._publish())
    await reached.wait()
    second = asyncio.create_task(trainer.pause())
    await until(lambda: site.control._desired.paused)
    go_on.set()
    await asyncio.gather(first, second)
    assert not site.control._backends


async def test_a_call_whose_trainer_ended_while_it_waited_is_told_so(site):
    trainer, runner = await site.trainer(), await site.remote()
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    await trainer.pause()
    held = asyncio.create_task(site.ask(claim))
    await until(lambda: site.gateway.in_flight)
    trainer._paused = False
    await trainer.stop()
    status, body = await held
    assert (status, body["error"]["code"]) == (503, "policy_gone")
    await runner.seal(claim.attempt.id)
    (call,) = await site.calls(claim)
    assert (call.status_code, call.error) == (503, f"policy_gone: {body['error']['message']}")


async def test_a_backend_without_token_ids_is_refused_over_the_connection(make_site):
    site = await make_site(FakeOptions(token_ids=False))
    trainer = await site.trainer()
    with pytest.raises(MissingTokensError, match="'trained' is trainable"):
        await trainer.probe("trained")


class Engine(Backend):
    """A backend of this process; counts what it is asked and told."""

    def __init__(self):
        self.closed = asyncio.Event()
        self.endless = False
        self.broken = ""
        self.bodies = []

    async def chat(self, body, *, headers, timeout_s):
        if self.broken == "at once":
            raise EngineError("no memory left")
        self.bodies.append(json.loads(body))
        return Reply(self)

    async def close(self):
        raise AssertionError("belongs to whoever made it")


class Reply:
    status = 200

    def __init__(self, engine):
        self.engine = engine
        self.headers = {"content-type": "text/event-stream"}

    async def body(self):
        for text in ("a", "b"):
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            yield b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"
        if self.engine.broken:
            raise EngineError("broke off")
        if self.engine.endless:
            await asyncio.Event().wait()
        choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        yield b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def close(self):
        self.engine.closed.set()


@pytest.fixture
async def served(site):
    """An engine of this process behind the gateway, and an attempt."""
    trainer, runner, engine = await site.remote(), await site.remote(), Engine()
    await trainer.route(Policy(name="own/policy", agents=("*",)), engine)
    claim = await site.claim()
    await runner.open(claim.rollout, claim.attempt)
    return engine, claim


async def test_an_engine_of_this_process_is_served_to_the_gateway(site, served):
    engine, claim = served
    async with site.call(claim, stream=True) as answer:
        data = await answer.read()
    assert data.count(b"data: ") == 4
    assert engine.bodies[0]["model"] == "own/policy"
    await site.gateway.seal(claim.attempt.id)
    (call,) = await site.calls(claim)
    assert call.complete
    assert call.choices[0].text == "ab"


async def test_an_agent_that_leaves_ends_the_generation_in_the_trainer(site, served):
    engine, claim = served
    engine.endless = True
    async with site.call(claim, stream=True) as answer:
        await answer.content.readline()
        answer.close()
    await asyncio.wait_for(engine.closed.wait(), 100)


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_an_engine_that_breaks_off_breaks_the_agents_answer(site, served, when):
    engine, claim = served
    engine.broken = when
    async with site.call(claim, stream=True) as answer:
        if when == "at once":
            assert answer.status == 503
            assert "no memory left" in await answer.text()
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
    await site.gateway.seal(claim.attempt.id)
    (call,) = await site.calls(claim)
    assert not call.complete
    assert call.error


async def test_only_the_gateway_may_ask_an_engine(site, served):
    url = next(iter(site.control._backends)).base_url
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{url}/chat/completions", json=ASK)
        assert answer.status_code == 401
        answer = await client.get(url)
        assert answer.status_code == 401
    assert "own%2Fpolicy" in url


async def test_what_a_dead_runner_left_is_sealed_by_the_next_attempt(site):
    await site.trainer()
    runner = await site.remote()
    claim = await site.claim(limits=Limits(timeout_s=600.0, lease_s=600.0, max_attempts=2))
    await runner.open(claim.rollout, claim.attempt)
    reached = asyncio.Event()

    async def before_send(answer, position):
        reached.set()
        await asyncio.Event().wait()

    site.model.before_send = before_send
    held = asyncio.create_task(site.ask(claim))
    await reached.wait()
    again = claim.attempt.__class__(
        **{**_fields(claim.attempt), "id": new_id("at"), "fence": claim.attempt.fence + 1}
    )
    await runner.open(claim.rollout, again)
    status, body = await held
    assert (status, body["error"]["code"]) == (410, "attempt_sealed")
    (call,) = await site.calls(claim)
    assert "the attempt ended" in call.error


async def test_a_call_after_the_deadline_is_told_so(site):
    await site.trainer()
    runner = await site.remote()
    claim = await site.claim(limits=Limits(timeout_s=30.0))
    past = claim.attempt.__class__(**{**_fields(claim.attempt), "deadline_at": 1.0})
    await runner.open(claim.rollout, past)
    status, body = await site.ask(claim)
    assert (status, body["error"]["code"]) == (504, "deadline_exceeded")


async def test_connections_are_closed_even_when_the_leave_is_interrupted(site, monkeypatch):
    remote = await site.trainer()
    session = remote._peer._client._session
    begun = asyncio.Event()

    async def hang():
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(remote._backends, "stop", hang)
    stopping = asyncio.create_task(remote.stop())
    await begun.wait()
    stopping.cancel()
    await asyncio.wait({stopping})
    assert session.closed
    monkeypatch.undo()
