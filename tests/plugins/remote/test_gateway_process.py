"""``agl gateway`` as a process of its own: killed in mid-stream, ended in order, refused."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack

import httpx
import pytest
from agl_endpoints import HttpBackend
from agl_remote import HttpStore, RemoteGateway
from agl_remote._gateway_serve import serve_gateway, store_of
from agl_remote._peer import Patience
from agl_testing.fake_openai import FakeOpenAI

from agl_core._builtin import load_plugins
from agl_core.errors import ConfigError, EngineError, StoreError
from agl_core.serving import AttemptKeys, address_of, bind
from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, Limits, Policy, Rollout, Task

KEY = "shared"
TRAINED = Policy(name="trained", agents=("writer",), trainable=True)

PATIENT = Rollout(
    id="ro_1",
    task=Task(id="t"),
    run_id="run",
    limits=Limits(timeout_s=600.0, lease_s=600.0, max_attempts=2),
)


class Process:
    """``agl gateway`` at a fixed port, started again and again."""

    def __init__(self, store):
        self.store = store
        self.port = "0"
        self.process = None
        self.url = ""

    async def start(self, **environment):
        command = ["-m", "agl_core.cli", "gateway", "--store", str(self.store), "--port", self.port]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "AGL_API_KEY": KEY, **environment},
        )
        line = (await self.process.stdout.readline()).decode()
        if line:
            assert line.startswith("Serving gateway at http://127.0.0.1:")
            self.url = line.split()[-1]
            self.port = self.url.rpartition(":")[2]
        return line

    async def end(self, signum):
        self.process.send_signal(signum)
        _, errors = await asyncio.wait_for(self.process.communicate(), 100)
        return self.process.returncode, errors.decode()


@pytest.fixture
async def process(tmp_path):
    process = Process(tmp_path / "store.db")
    await process.start()
    yield process
    if process.process.returncode is None:
        await process.end(signal.SIGKILL)


@pytest.fixture
async def world(process):
    """A store, a model, a client, a trainer and a runner around the process."""
    async with AsyncExitStack() as stack:
        store = SqliteStore(process.store)
        await store.open()
        stack.push_async_callback(store.close)
        model = await stack.enter_async_context(FakeOpenAI())
        backend = HttpBackend(model.base_url, model="weights")
        stack.push_async_callback(backend.close)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=100))
        trainer, runner = RemoteGateway(process.url, KEY), RemoteGateway(process.url, KEY)
        for remote in (trainer, runner):
            stack.push_async_callback(remote.stop)
            await remote.start()
        await trainer.route(TRAINED, backend)
        yield store, model, client, trainer, runner


def chat(claim, text, **body):
    message = {"role": "user", "content": text}
    headers = {
        "Authorization": f"Bearer {AttemptKeys(KEY).of(claim.rollout.id, claim.attempt.id)}",
        "x-agl-rollout": claim.rollout.id,
        "x-agl-attempt": claim.attempt.id,
        "x-agl-agent": "writer",
    }
    return {"json": {"model": "trained", "messages": [message], **body}, "headers": headers}


async def test_a_gateway_killed_in_mid_stream_loses_an_attempt_and_nothing_else(process, world):
    store, model, client, trainer, runner = world
    await store.enqueue([PATIENT])
    (first,) = await store.claim("w", timeout_s=100)
    await runner.open(first.rollout, first.attempt)
    address = f"{process.url}/v1/chat/completions"
    answer = await client.post(address, **chat(first, "whole"))
    assert answer.json()["choices"][0]["message"]["content"] == "whole"

    hold = asyncio.Event()

    async def before_send(answered, position):
        if position == 2:
            await hold.wait()

    model.before_send = before_send
    request = chat(first, "cut in two", stream=True)
    async with client.stream("POST", address, **request) as answer:
        assert answer.status_code == 200
        pieces = answer.aiter_bytes()
        assert await anext(pieces)
        await process.end(signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            _ = [piece async for piece in pieces]
    await process.start()
    hold.set()
    answer = await client.post(address, **chat(first, "again"))
    assert answer.status_code == 503
    with pytest.raises(EngineError, match="was restarted"):
        await runner.seal(first.attempt.id)
    await store.finish(first.attempt.id, status=AttemptStatus.LOST)

    (second,) = await store.claim("w", timeout_s=100)
    assert second.attempt.fence == 2
    await runner.open(second.rollout, second.attempt)
    answer = await client.post(address, **chat(second, "whole"))
    assert answer.status_code == 200
    assert await runner.seal(second.attempt.id) == 1
    spans = await store.spans(["ro_1"], attempt_id=second.attempt.id)
    assert [span.call.choices[0].text for span in spans] == ["whole"]
    assert spans[0].call.choices[0].token_ids.tolist() == model.log[-1].choices[0].token_ids
    assert (await trainer.lost()).counts == {"gateway_restarts": 1, "late_calls": 1}


async def test_a_gateway_that_is_told_to_end_writes_what_it_has(process, world):
    store, _, client, _, runner = world
    await store.enqueue([PATIENT])
    (claim,) = await store.claim("w", timeout_s=100)
    await runner.open(claim.rollout, claim.attempt)
    await client.post(f"{process.url}/v1/chat/completions", **chat(claim, "hi"))
    status, errors = await process.end(signal.SIGTERM)
    assert status == 130
    assert "Error" not in errors
    (span,) = await store.spans(["ro_1"])
    assert span.call.choices[0].text == "hi"
    (rollout,) = await store.wait(["ro_1"], timeout_s=0.0) or [None]
    assert rollout is None  # nobody sealed it
    await process.start()


async def test_what_it_cannot_serve_with_is_told_in_one_line(process):
    other = Process(process.store)
    other.port = process.port
    assert await other.start() == ""
    _, errors = await other.process.communicate()
    assert other.process.returncode == 2
    assert errors.decode().startswith(f"Error: Cannot listen on 127.0.0.1:{process.port}")
    assert len(errors.decode().splitlines()) == 1


async def test_no_key_and_a_store_that_is_away(monkeypatch, tmp_path):
    def ready(url):
        raise AssertionError(url)

    async def serve(store):
        await serve_gateway(store, load_plugins(), host="127.0.0.1", port=0, ready=ready)

    monkeypatch.delenv("AGL_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="AGL_API_KEY is not set"):
        await serve(MemoryStore())
    monkeypatch.setenv("AGL_API_KEY", KEY)
    listener = bind("127.0.0.1", 0)
    url = address_of(listener)
    listener.close()
    assert isinstance(store_of(url, load_plugins()).inner, HttpStore)
    assert isinstance(store_of(str(tmp_path), load_plugins()).inner, SqliteStore)
    with pytest.raises(ConfigError, match=r"an address is http://127\.0\.0\.1:8000"):
        store_of("127.0.0.1:8000", load_plugins())
    with pytest.raises(StoreError, match="has been away"):
        await serve(HttpStore(url, KEY, patience=Patience(seconds=0.0)))


async def test_records_that_no_store_takes_are_told_of(monkeypatch):
    """The store goes away for good: the process ends in time, and says what it lost."""
    monkeypatch.setenv("AGL_API_KEY", KEY)
    monkeypatch.setattr("agl_core.waits.GATEWAY_RECORDS_S", 0.3)
    store, listening = MemoryStore(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_gateway(store, load_plugins(), host="127.0.0.1", port=0, ready=listening.set_result)
    )
    url = await listening
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(FakeOpenAI())
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=100))
        backend = HttpBackend(model.base_url, model="weights")
        stack.push_async_callback(backend.close)
        remote = RemoteGateway(url, KEY)
        await remote.start()
        await remote.route(TRAINED, backend)
        await store.enqueue([PATIENT])
        (claim,) = await store.claim("w", timeout_s=100)
        await remote.open(claim.rollout, claim.attempt)

        async def away(spans):
            await asyncio.Event().wait()

        monkeypatch.setattr(store, "add_spans", away)
        await client.post(f"{url}/v1/chat/completions", **chat(claim, "hi"))
        await remote.stop()
        serving.cancel()
        with pytest.raises(StoreError, match="1 call records could not be written"):
            await serving
