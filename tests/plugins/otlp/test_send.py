"""Attempts reach a collector whole, or it is told what did not."""

from __future__ import annotations

import asyncio
import json

import pytest
from agl_otlp import _send as send
from agl_otlp._decode import decode
from agl_otlp._send import send_attempts, traces_url
from agl_testing._store_samples import begin, model_call, span, succeed
from aiohttp import web
from click.testing import CliRunner

from agl_core.cli.group import cli
from agl_core.errors import ConfigError, StoreError
from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore
from tests.installed import INSTALLED


class Collector:
    """Keeps what it is sent; answers first what `answers` says."""

    def __init__(self):
        self.requests = []
        self.answers = []

    async def take(self, request):
        self.requests.append((request.path, dict(request.headers), await request.read()))
        if self.answers:
            status, body, headers = self.answers.pop(0)
            return web.Response(status=status, body=body, headers=headers)
        return web.json_response({})

    def spans(self):
        return [s for _, _, body in self.requests for s in decode(json.loads(body)).spans]


@pytest.fixture
async def collector():
    collector = Collector()
    app = web.Application()
    app.router.add_post("/{path:.*}", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield collector
    await runner.cleanup()


async def fill(store, count=1):
    for _ in range(count):
        claim = await begin(store)
        await succeed(store, claim, [span(claim), model_call(claim)])
    running = await begin(store)
    await store.add_spans([span(running)])


@pytest.fixture
async def store():
    store = MemoryStore()
    await store.open()
    await fill(store)
    yield store
    await store.close()


class Pauses(list):
    async def __call__(self, seconds):
        self.append(seconds)


async def test_ended_attempts_are_sent_with_the_headers_given(store, collector):
    sent = await send_attempts(store, collector.url, headers={"x-key": "k"})

    ((path, headers, body),) = collector.requests
    assert path == "/v1/traces"
    assert headers["x-key"] == "k"
    assert headers["Content-Type"] == "application/json"
    assert (sent.attempts, sent.spans, sent.rejected, sent.running) == (1, 3, 0, 1)
    assert [s.kind for s in collector.spans()] == ["message", "llm"]
    assert b"gen_ai.input.messages" not in body


async def test_many_attempts_go_in_several_requests(store, collector, monkeypatch):
    await fill(store, 4)
    monkeypatch.setattr(send, "_SPANS_PER_REQUEST", 7)

    sent = await send_attempts(store, f"{collector.url}/own/path", content=True)

    assert [len(decode(json.loads(body)).spans) for _, _, body in collector.requests] == [4, 4, 2]
    assert {path for path, _, _ in collector.requests} == {"/own/path"}
    assert sent.attempts == 5
    assert b"gen_ai.input.messages" in collector.requests[0][2]


async def test_what_a_collector_rejects_is_counted(store, collector):
    partial = {"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}
    collector.answers = [(200, json.dumps(partial).encode(), {})]

    sent = await send_attempts(store, collector.url)

    assert (sent.rejected, sent.reasons) == (2, ["too old"])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"[1]",
        b"3",
        b'{"partialSuccess":null}',
        b'{"partialSuccess":{"rejectedSpans":null,"errorMessage":null}}',
        b'{"partialSuccess":{"rejectedSpans":"few"}}',
    ],
)
async def test_a_collector_that_answers_something_else_is_believed(store, collector, answer):
    collector.answers = [(200, answer, {})]

    assert (await send_attempts(store, collector.url)).rejected == 0


async def test_a_busy_collector_is_asked_again_as_late_as_it_says(store, collector):
    collector.answers = [(503, b"", {}), (429, b"", {"Retry-After": "7"}), (502, b"", {})]
    pauses = Pauses()

    sent = await send_attempts(store, collector.url, pause=pauses)

    assert sent.attempts == 1
    assert pauses == [0.5, 7.0, 2.0]


async def test_a_collector_that_stays_away_is_an_error(store, collector):
    collector.answers = [(503, b"busy", {})] * 9
    pauses = Pauses()
    with pytest.raises(StoreError, match="HTTP 503: busy"):
        await send_attempts(store, collector.url, pause=pauses)
    assert len(pauses) == 4

    nobody = Pauses()
    with pytest.raises(StoreError, match="ClientConnectorError"):
        await send_attempts(store, "http://127.0.0.1:1", pause=nobody)
    assert len(nobody) == 4


async def test_a_refusal_is_not_repeated(store, collector):
    collector.answers = [(401, b"no key", {})]
    pauses = Pauses()

    with pytest.raises(StoreError, match="HTTP 401: no key"):
        await send_attempts(store, collector.url, pause=pauses)
    assert pauses == []


def test_addresses_without_a_path_get_the_usual_one():
    assert traces_url("http://h:4318") == "http://h:4318/v1/traces"
    assert traces_url("http://h:4318/") == "http://h:4318/v1/traces"
    assert traces_url("https://h/v1/traces") == "https://h/v1/traces"
    for wrong in ("h:4318", "ftp://h", "http://", "http://:4318", "http://[::1", "http://h:x"):
        with pytest.raises(ConfigError):
            traces_url(wrong)


@pytest.fixture
def agl(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", INSTALLED)
    runner = CliRunner()

    async def run(*arguments):
        return await asyncio.to_thread(runner.invoke, cli, [str(one) for one in arguments])

    return run


async def test_the_command_sends_and_fails_when_spans_were_rejected(agl, collector, tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await fill(store)
    command = ("store", "export", "store.db", "--otlp", collector.url, "--header", "x-key=a=b")

    good = await agl(*command, "--status", "succeeded")
    partial = {"partialSuccess": {"rejectedSpans": 1, "errorMessage": "too old"}}
    collector.answers = [(200, json.dumps(partial).encode(), {})]
    bad = await agl(*command)
    await store.close()

    assert good.exit_code == 0, good.stderr
    assert f"sent 3 spans of 1 attempts to {collector.url}" in good.stdout
    assert "have not ended" not in good.stdout
    assert collector.requests[0][1]["x-key"] == "a=b"
    assert bad.exit_code == 1
    assert "left out 1 attempts that have not ended" in bad.stdout
    assert "rejected 1 spans: too old" in bad.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--otlp", "http://h", "--output", "x"),
        ("--content",),
        ("--header", "a=b"),
        ("--otlp", "http://h", "--header", "ab"),
        ("--otlp", "nowhere"),
    ],
)
async def test_options_that_do_not_go_together_are_an_error(agl, tmp_path, options):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.close()

    assert (await agl("store", "export", "store.db", *options)).exit_code == 2
