"""``setup_rate_limiting(app)`` and the variables ``RATE_LIMIT_*`` of older programs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import agl_compat
import httpx
import pytest
from agl_compat._names import renamed
from agl_compat._rates import service_settings
from agl_limits import RateLimitMiddleware
from agl_limits._options import LimitsOptions
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from agl_core.config import resolve
from agl_core.errors import ConfigError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [each for each in os.environ if each.startswith("RATE_LIMIT_")]:
        monkeypatch.delenv(name)
    renamed.cache_clear()
    yield
    renamed.cache_clear()


async def hello(request: Any) -> PlainTextResponse:
    del request
    return PlainTextResponse("hello")


def application() -> Starlette:
    methods = ["GET", "OPTIONS", "HEAD"]
    paths = ("/", "/health", "/metrics", "/free")
    return Starlette(routes=[Route(path, hello, methods=methods) for path in paths])


async def statuses(app: Any, *requests: tuple[str, str, dict[str, str]]) -> list[int]:
    transport = httpx.ASGITransport(app=app, client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        found = [
            await client.request(method, path, headers=headers)
            for method, path, headers in requests
        ]
    return [answer.status_code for answer in found]


def limited(app: Any, **given: Any) -> Any:
    with pytest.warns(agl_compat.OldNameWarning, match=r"app\.add_middleware"):
        return agl_compat.setup_rate_limiting(app, **given)


async def test_the_defaults_are_those_of_older_programs() -> None:
    app = application()
    assert limited(app) is app
    get, key = ("GET", "/", {}), ("GET", "/", {"X-API-Key": "k"})
    assert await statuses(app, *[get] * 100) == [200] * 100
    assert await statuses(app, get, key) == [429, 200]
    free: list[Any] = [("GET", "/health", {}), ("GET", "/metrics", {}), ("OPTIONS", "/", {})]
    assert await statuses(app, *free) == [200] * 3


async def test_every_variable_counts_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "MAX_REQUESTS": "1",
        "WINDOW_SECONDS": "3600",
        "ENABLED": "True",
        "IDENTIFIER_HEADER": "X-User",
        "FALLBACK_TO_IP": "no",
        "EXCLUDE_PATHS": "/free, /other",
        "EXCLUDE_METHODS": '["head"]',
    }
    for name, value in given.items():
        monkeypatch.setenv(f"RATE_LIMIT_{name}", value)
    app = application()
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        agl_compat.setup_rate_limiting(app)
        agl_compat.setup_rate_limiting(application())
    texts = [str(each.message) for each in noticed]
    assert len(texts) == len(given) + 1
    assert all(any(text.startswith(f"RATE_LIMIT_{name} ") for text in texts) for name in given)
    user = {"X-User": "u"}
    found = await statuses(
        app,
        *[("GET", "/", user), ("GET", "/", user), ("GET", "/", {}), ("GET", "/", {})],
        *[("GET", "/free", user), ("HEAD", "/", user), ("GET", "/health", user)],
    )
    assert found == [200, 429, 200, 200, 200, 200, 429]


@pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
async def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE_LIMIT_MAX_REQUESTS", "1")
    monkeypatch.setenv("RATE_LIMIT_ENABLED", "false")
    app = application()
    assert limited(app) is app
    assert await statuses(app, *[("GET", "/", {})] * 3) == [200] * 3


@pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
async def test_other_applications_are_wrapped(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE_LIMIT_MAX_REQUESTS", "1")
    plain = application().router
    app = limited(plain, redis=redis.url)
    assert isinstance(app, RateLimitMiddleware)
    assert await statuses(app, *[("GET", "/", {})] * 2) == [200, 429]
    await app._limiter.aclose()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_REQUESTS", "many"),
        ("MAX_REQUESTS", "0"),
        ("WINDOW_SECONDS", "-1"),
        ("ENABLED", "perhaps"),
        ("FALLBACK_TO_IP", "2"),
    ],
)
@pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"RATE_LIMIT_{name}", value)
    with pytest.raises(ConfigError, match=f"RATE_LIMIT_{name} is {value!r}"):
        agl_compat.setup_rate_limiting(application())


@pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
def test_limits_of_services_become_those_of_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert service_settings() == {}
    monkeypatch.setenv("RATE_LIMIT_SERVICE_WINDOW_SECONDS", "30")
    assert service_settings() == {"limits.endpoints": {"*": {"requests": "1000 per 30 seconds"}}}
    monkeypatch.setenv("RATE_LIMIT_SERVICE_MAX_REQUESTS", "5")
    (endpoints,) = service_settings().values()
    options = LimitsOptions.model_validate({"endpoints": endpoints})
    assert options.endpoints["*"].requests == "5 per 30 seconds"
    assert resolve({"model": "m", "limits": {"endpoints": endpoints}}).sections
    monkeypatch.setenv("RATE_LIMIT_ENABLED", "0")
    assert service_settings() == {}
    monkeypatch.setenv("RATE_LIMIT_ENABLED", "1")
    monkeypatch.setenv("RATE_LIMIT_SERVICE_MAX_REQUESTS", "none")
    with pytest.raises(ConfigError, match="RATE_LIMIT_SERVICE_MAX_REQUESTS is 'none'"):
        service_settings()
