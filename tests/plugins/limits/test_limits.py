"""Limits of functions and ASGI applications, counted in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from agl_limits import Limiter, RateLimitError, RateLimitMiddleware, parse_rate, rate_limited
from agl_limits import _limiter as module

from agl_core.errors import ConfigError


@pytest.mark.parametrize("rate", ["", "x", "0/minute", "1/minute;5/hour", "-3/second", "5"])
def test_a_rate_that_is_none_is_named(rate: str) -> None:
    with pytest.raises(ConfigError, match="is no rate"):
        parse_rate(rate)


@pytest.mark.parametrize("url", ["http://host", "localhost:6379", "async+redis://x"])
def test_an_address_that_is_none_of_redis_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="redis://HOST:PORT"):
        Limiter("1/minute", redis=url)


def test_each_name_has_its_own_window() -> None:
    limiter = Limiter("2/minute")
    verdicts = [limiter.hit("a") for _ in range(3)]
    assert [each.allowed for each in verdicts] == [True, True, False]
    assert [each.remaining for each in verdicts] == [1, 0, 0]
    assert 0 < verdicts[-1].reset_s <= 60
    assert limiter.hit("b").allowed
    assert limiter.hit("a", "b").allowed
    assert limiter.hit("\ud83d \0").allowed
    assert not limiter.hit("c", cost=3).allowed


async def test_a_refusal_states_when_the_next_event_is_allowed() -> None:
    limiter = Limiter("4/hour")
    assert await limiter.wait_s("a", cost=4) == 0.0
    assert await limiter.refusal("a", cost=4) is None
    refused = await limiter.refusal("a")
    assert refused is not None
    assert not refused.allowed
    assert refused.reset_s == pytest.approx(await limiter.wait_s("a"), abs=1.0)
    # All four count until the window ends, and three from a quarter of the next one on.
    assert await limiter.wait_s("a", cost=4) > await limiter.wait_s("a", cost=2)
    assert await limiter.wait_s("b") == 0.0


@pytest.mark.parametrize(
    ("window", "cost", "seconds"),
    [
        ((0, 0.0, 0, 0.0), 1, 0.0),
        ((0, 0.0, 10, 90.0), 1, 30.0),  # the window lasts 30 s, then ten count as nine at once
        ((0, 0.0, 10, 90.0), 10, 30.0 + 54.0),  # until less than one of ten is left: 6 s of 60
        ((20, 30.0, 0, 90.0), 1, 0.0 + 30.0 - 30.0),
        ((20, 45.0, 0, 105.0), 1, 45.0 - 30.0),  # 15 count; nine are allowed below ten of 20
        ((5, 60.0, 6, 120.0), 1, 60.0 - 48.0),
    ],
)
def test_the_wait_follows_from_the_counts(window: Any, cost: int, seconds: float) -> None:
    found = module._Window(*window).wait_s(10, 60, cost)
    assert found == pytest.approx(seconds, abs=0.01)


def test_those_who_ask_no_more_are_forgotten_without_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [6_000_000.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0])
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr("limits.storage.memory.time", clock)
    limiter = Limiter("5/second")
    before = threading.active_count()
    for number in range(50):
        limiter.hit(f"user {number}")
    storage = limiter._local
    assert len(storage.storage) == 50
    now[0] += 30
    limiter.hit("another")
    assert len(storage.storage) == 1
    assert threading.active_count() <= before


def test_no_thread_gets_more_than_the_rate() -> None:
    limiter = Limiter("50/hour")
    allowed: list[bool] = []

    def ask() -> None:
        allowed.extend(limiter.hit("all").allowed for _ in range(25))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 50


async def test_processes_that_share_a_redis_count_together(redis: Any) -> None:
    one, other = (Limiter("4/hour", redis=redis.url, space="s") for _ in range(2))
    found = [one.hit("a").allowed, (await other.ahit("a")).allowed]
    found += [one.hit("a").allowed, (await other.ahit("a")).allowed]
    found += [one.hit("a").allowed, (await other.ahit("a")).allowed]
    assert found == [True] * 4 + [False] * 2
    third = Limiter("4/hour", redis=redis.url, space="t")
    assert third.hit("a").allowed
    for each in (one, other, third):
        await each.aclose()


async def test_events_at_once_ask_redis_together_and_get_no_more_than_the_rate(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, asked = Limiter("60/hour", redis=redis.url), list[int]()
    allowed = Limiter._allowed

    async def counted(self: Limiter, names: tuple[str, ...], cost: int) -> bool:
        asked.append(cost)
        return await allowed(self, names, cost)

    monkeypatch.setattr(Limiter, "_allowed", counted)
    found = await asyncio.gather(*(limiter.refusal("a") for _ in range(50)))
    assert found == [None] * 50
    assert asked == [50]
    found = await asyncio.gather(*(limiter.refusal("a") for _ in range(20)))
    assert [each is None for each in found] == [True] * 10 + [False] * 10
    assert await limiter.refusal("b") is None
    assert not limiter._queues
    await limiter.aclose()


async def test_an_event_that_is_given_up_counts_nothing(redis: Any) -> None:
    limiter = Limiter("3/hour", redis=redis.url)
    given_up = [asyncio.create_task(limiter.refusal("a")) for _ in range(5)]
    await asyncio.sleep(0)
    kept = asyncio.create_task(limiter.refusal("a"))
    for task in given_up[1:]:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    assert await kept is None
    assert await limiter.refusal("a") is None
    await limiter.aclose()


async def test_without_redis_a_process_counts_by_itself_and_says_so_once(
    redis: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter("2/hour", redis=redis.url)
    assert limiter.hit("a").allowed
    assert (await limiter.ahit("b")).allowed
    redis.stop()
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    with caplog.at_level(logging.WARNING):
        found = [limiter.hit("a").allowed, limiter.hit("a").allowed, limiter.hit("a").allowed]
        assert (await limiter.ahit("b")).allowed
    assert found == [True, True, False]
    assert [record.name for record in caplog.records] == ["agl_limits._limiter"]
    assert redis.url not in caplog.text
    await limiter.aclose()


def test_a_decorated_function_raises_when_called_too_often() -> None:
    @rate_limited("1/hour", by=lambda user: user)
    def answer(user: str) -> str:
        """Say hello."""
        return f"hello {user}"

    assert answer("a") == "hello a"
    assert answer("b") == "hello b"
    assert answer.__doc__ == "Say hello."
    with pytest.raises(RateLimitError, match=r"more often than 1/hour: call it again") as refused:
        answer("a")
    assert 0 < refused.value.retry_after_s <= 3600


async def test_a_decorated_coroutine_function_stays_one() -> None:
    @rate_limited("2/hour")
    async def answer() -> int:
        return 1

    assert asyncio.iscoroutinefunction(answer)
    assert [await answer(), await answer()] == [1, 1]
    with pytest.raises(RateLimitError):
        await answer()


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [(b"x", b"y")]})
    await send({"type": "http.response.body", "body": b""})


async def request(
    app: Any, path: str = "/", *, method: str = "GET", address: str = "10.0.0.1", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
        "client": (address, 1234) if address else None,
    }
    await app(scope, None, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], head, b"".join(each["body"] for each in sent[1:])


async def test_one_request_too_many_gets_429_with_the_headers() -> None:
    app = RateLimitMiddleware(application, "2/minute")
    status, headers, _ = await request(app)
    assert (status, headers["x"], headers["x-ratelimit-remaining"]) == (204, "y", "1")
    await request(app)
    status, headers, body = await request(app)
    assert status == 429
    assert headers["x-ratelimit-limit"] == "2"
    assert headers["x-ratelimit-remaining"] == "0"
    assert 1 <= int(headers["retry-after"]) == int(headers["x-ratelimit-reset"]) <= 60
    assert headers["ratelimit-policy"] == '"default";q=2;w=60'
    assert headers["ratelimit"].startswith('"default";r=0;t=')
    assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
    assert int(headers["content-length"]) == len(body)


async def test_users_are_separated_by_key_then_by_address() -> None:
    app = RateLimitMiddleware(application, "1/minute")
    asked = [
        {"x_api_key": "one"},
        {"authorization": "Bearer two"},
        {"authorization": "bearer one"},  # the same user as the first
        {"address": "10.0.0.2"},
        {"address": "10.0.0.3", "authorization": "Basic abc"},
        {"address": "10.0.0.3"},
        {"address": ""},
        {"address": ""},
    ]
    found = [(await request(app, **each))[0] for each in asked]
    assert found == [204, 204, 429, 204, 204, 429, 204, 204]


async def test_what_is_excluded_is_not_limited() -> None:
    app = RateLimitMiddleware(application, "1/minute", by_address=False)
    assert [(await request(app))[0] for _ in range(3)] == [204] * 3
    app = RateLimitMiddleware(application, "1/minute")
    assert [(await request(app, "/health"))[0] for _ in range(3)] == [204] * 3
    assert [(await request(app, method="OPTIONS"))[0] for _ in range(3)] == [204] * 3
    assert (await request(app))[1]["x-ratelimit-remaining"] == "0"
