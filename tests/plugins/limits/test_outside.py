"""Limits towards endpoints outside: requests wait for their turn, and for ``Retry-After``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from agl_endpoints import THROTTLES, HttpBackend, retry_after
from agl_limits import _outside as module
from agl_limits import plugin
from agl_limits._options import EndpointLimits, LimitsOptions
from agl_limits._outside import EndpointThrottle, estimated_tokens, make_throttles
from aiohttp import web

import agl_core as agl
from agl_core.config import RunConfig, resolve
from agl_core.errors import EngineError

BODY = b'{"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}'
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 6_000_000.0  # a window of a minute begins here
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    monkeypatch.setattr("agl_endpoints._backend.monotonic", lambda: clock.now)
    monkeypatch.setattr("limits.storage.memory.time", SimpleNamespace(time=lambda: clock.now))
    return clock


def throttle_of(clock: Clock, **limits: Any) -> EndpointThrottle:
    return EndpointThrottle(
        "https://x/v1", EndpointLimits(**limits), LimitsOptions(), sleep=clock.sleep
    )


async def test_requests_beyond_the_rate_wait_in_order(clock: Clock) -> None:
    throttle, order = throttle_of(clock, requests="2/minute"), list[int]()

    async def ask(number: int) -> None:
        await throttle.turn(BODY, timeout_s=600.0)
        order.append(number)

    await asyncio.gather(*map(ask, range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert 60 <= sum(clock.slept) <= 180
    assert (throttle.use.allowed, throttle.use.refused) == (5, 3)
    assert throttle.use.waited_s >= sum(clock.slept)


async def test_tokens_are_counted_too(clock: Clock) -> None:
    throttle = throttle_of(clock, requests="9/minute", tokens="24/minute")
    await throttle.turn(BODY, timeout_s=1.0)
    await throttle.turn(BODY, timeout_s=1.0)
    assert not clock.slept
    await throttle.turn(BODY, timeout_s=600.0)
    assert sum(clock.slept) > 60
    huge = json.dumps({"max_tokens": 10**6, "messages": []}).encode()
    await throttle.turn(huge, timeout_s=600.0)  # counts as a whole window


async def test_a_turn_that_comes_too_late_fails_at_once_and_counts_nothing(clock: Clock) -> None:
    throttle = throttle_of(clock, requests="1/minute")
    await throttle.turn(BODY, timeout_s=1.0)
    for _ in range(3):
        with pytest.raises(EngineError, match=r"https://x/v1 would wait another .* s .* 5\.0 s"):
            await throttle.turn(BODY, timeout_s=5.0)
    assert not clock.slept
    await throttle.turn(BODY, timeout_s=600.0)
    assert sum(clock.slept) <= 121


async def test_a_cancelled_wait_frees_its_place(clock: Clock) -> None:
    throttle, waits = throttle_of(clock, requests="1/minute"), asyncio.Event()
    await throttle.turn(BODY, timeout_s=1.0)
    sleep = clock.sleep

    async def forever(seconds: float) -> None:
        del seconds
        waits.set()
        await asyncio.Event().wait()

    throttle._sleep = forever
    first = asyncio.create_task(throttle.turn(BODY, timeout_s=600.0))
    await waits.wait()
    second = asyncio.create_task(throttle.turn(BODY, timeout_s=600.0))
    third = asyncio.create_task(throttle.turn(BODY, timeout_s=600.0))
    await asyncio.sleep(0)
    throttle._sleep = sleep
    first.cancel()
    second.cancel()
    await third
    assert first.cancelled()
    assert second.cancelled()
    assert sum(clock.slept) <= 121  # one window, not three


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 36}], "max_tokens": 5}, 10 + 5),
        ({"messages": [], "max_completion_tokens": 5, "max_tokens": 9, "n": 3}, 15),
        ({"messages": [], "max_tokens": "many", "n": None}, 100),
        ({"messages": [{"content": [{"image_url": {"url": "data:image/png;base64,AAAA"}}]}]}, 100),
        ({"messages": [{"content": [{"input_audio": {"data": "AAAA" * 99}}]}]}, 100),
        ({"prompt": [1, 2, 3], "max_tokens": 1}, 4),
        ({"input": ["four", "four"]}, 102),
        ({"messages": 5}, 101),
    ],
)
def test_tokens_are_estimated_from_texts(body: dict[str, Any], tokens: int) -> None:
    assert estimated_tokens(json.dumps(body).encode(), answer_tokens=100) == tokens


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff" * 40, b"[" * 100_000, b'{"messages":'])
def test_a_malformed_body_counts_by_its_bytes(body: bytes) -> None:
    assert estimated_tokens(body, answer_tokens=1) == len(body) // 4 + 1


class Endpoint:
    """Answers with these statuses and headers, then with 200."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.asked = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.asked += 1
        if self.answers:
            status, headers = self.answers.pop(0)
            return web.json_response({"error": "later"}, status=status, headers=headers)
        return web.json_response(ANSWER)


@asynccontextmanager
async def serving() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    app.router.add_post("/v1/embeddings", endpoint.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


@asynccontextmanager
async def throttled(clock: Clock, url: str, **limits: str) -> AsyncIterator[HttpBackend]:
    config = resolve({"model": "m", "limits": {"endpoints": {url: limits}}})
    throttles = make_throttles(config)
    before = THROTTLES.set(throttles)
    backend = HttpBackend(url)
    THROTTLES.reset(before)
    throttle = throttles(url)
    assert throttle is not None
    throttle._sleep = clock.sleep
    yield backend
    await backend.close()


async def status_of(backend: HttpBackend, *, timeout_s: float = 600.0) -> int:
    reply = await backend.chat(BODY, headers={}, timeout_s=timeout_s)
    await reply.close()
    return reply.status


async def test_retry_after_is_waited_for(clock: Clock) -> None:
    async with (
        serving() as endpoint,
        throttled(clock, endpoint.url, requests="99/minute") as backend,
    ):
        endpoint.answers = [(429, {"Retry-After": "7"}), (503, {"Retry-After": "2.5"}), (429, {})]
        assert await status_of(backend) == 200
        assert clock.slept == [7.0, 2.5, 1.0]
        assert endpoint.asked == 4
        endpoint.answers = [(503, {}), (500, {"Retry-After": "9"}), (429, {"Retry-After": "-3"})]
        assert [await status_of(backend) for _ in range(3)] == [503, 500, 200]
        endpoint.answers = [(429, {"Retry-After": "3"})]
        assert (await backend.post("/embeddings", BODY, 60.0)).status == 200
        assert clock.slept[3:] == [3.0]


async def test_a_refusal_that_asks_for_too_long_a_wait_is_returned(clock: Clock) -> None:
    async with (
        serving() as endpoint,
        throttled(clock, endpoint.url, requests="99/minute") as backend,
    ):
        endpoint.answers = [(429, {"Retry-After": "61"})]
        assert await status_of(backend, timeout_s=60.0) == 429
        assert not clock.slept
        # The endpoint is left alone until then.
        with pytest.raises(EngineError, match=r"would wait another 61\.0 s"):
            await status_of(backend, timeout_s=60.0)
        assert endpoint.asked == 1
        assert await status_of(backend) == 200
        assert clock.slept == [61.0]


async def test_backends_of_an_endpoint_share_its_limit(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        serving() as endpoint,
        throttled(clock, endpoint.url, requests="1/minute") as backend,
    ):
        other = HttpBackend(endpoint.url)  # made outside: without limits
        twin = HttpBackend(endpoint.url)
        twin._throttle = backend._throttle
        assert [await status_of(each) for each in (backend, other, other)] == [200] * 3
        assert not clock.slept
        assert [await status_of(twin) for _ in range(2)] == [200] * 2
        assert len(clock.slept) >= 2
        await other.close()
        await twin.close()
    assert len(caplog.records) == 1
    assert "its limit is requests 1/minute" in caplog.text


def test_the_first_pattern_that_matches_counts() -> None:
    endpoints = {"https://a/v1": {"requests": "1/minute"}, "https://*": {"requests": "2/minute"}}
    throttles = make_throttles(resolve({"model": "m", "limits": {"endpoints": endpoints}}))
    rates = {url: getattr(throttles(url), "use", None) for url in ("https://a/v1/", "https://b/v1")}
    assert [each.rate for each in rates.values() if each] == [
        "requests 1/minute",
        "requests 2/minute",
    ]
    assert throttles("https://b/v1") is throttles("https://b/v1/")
    assert throttles("http://b/v1") is None
    assert [each.name for each in throttles.use] == ["https://a/v1", "https://b/v1"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("1.5", 1.5), ("-1", 0.0), ("", None), ("soon", None), ("inf", None)],
)
def test_retry_after_is_read(value: str, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (retry_after("Fri, 31 Dec 9998 23:59:59 GMT") or 0) > 10**9


async def test_requests_are_counted_in_redis(redis: Any) -> None:
    options = LimitsOptions(redis=redis.url)
    limits = EndpointLimits(requests="2/hour")
    one, other = (EndpointThrottle("https://x/v1", limits, options) for _ in range(2))
    await one.turn(BODY, timeout_s=1.0)
    await other.turn(BODY, timeout_s=1.0)
    with pytest.raises(EngineError, match="for its turn"):
        await one.turn(BODY, timeout_s=1.0)
    await one.close()
    await other.close()


async def test_a_configuration_sets_the_limits_of_its_context() -> None:
    limited = resolve({"model": "m", "limits": {"endpoints": {"*": {"requests": "1/minute"}}}})
    plugin.agl_config_resolved(limited)
    assert HttpBackend("https://x/v1")._throttle is not None
    plugin.agl_config_resolved(RunConfig(model="m"))
    assert HttpBackend("https://x/v1")._throttle is None


async def program(task: agl.Task) -> str:
    """One call of an agent."""
    llm = agl.current().llm
    with agl.agent_scope("writer"):
        async with httpx.AsyncClient(timeout=600.0) as client:
            headers = {"Authorization": f"Bearer {llm.api_key}"}
            address = f"{llm.base_url}/chat/completions"
            answer = await client.post(address, json=json.loads(BODY), headers=headers)
    return answer.json()["choices"][0]["message"]["content"]


async def test_an_evaluation_waits_at_its_endpoint(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the section of the configuration to the requests, also without a training."""
    made: list[EndpointThrottle] = []
    begin = EndpointThrottle.__init__

    def watched(self: EndpointThrottle, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **{**kwargs, "sleep": clock.sleep})
        made.append(self)

    monkeypatch.setattr(EndpointThrottle, "__init__", watched)
    async with serving() as endpoint:
        evaluation = await asyncio.to_thread(
            agl.evaluate,
            program,
            [{"input": str(number)} for number in range(4)],
            reward=lambda task, output, attempt: float(output == "ok"),
            config={
                "directory": str(tmp_path),
                "model": "m",
                "limits": {"endpoints": {endpoint.url: {"requests": "2/minute"}}},
                "engine": {"name": "http", "base_url": endpoint.url},
                "store": {"name": "memory"},
            },
            progress=False,
        )
    assert not evaluation.failed
    (throttle,) = made
    assert throttle.use.allowed == endpoint.asked >= 4
    assert throttle.use.refused >= 2
