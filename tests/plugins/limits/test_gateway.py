"""The section ``[limits]``: what the gateway refuses, and what a run pays without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from agl_endpoints import THROTTLES, HttpBackend
from agl_limits import _limiter as limiter_module
from agl_limits import plugin
from agl_limits._gateway import make_admission
from agl_reading import read_services
from agl_testing.plugin_contract import PluginContract
from click.testing import CliRunner

from agl_core.app import check_sections, gateway_server, load_plugins
from agl_core.cli.group import cli
from agl_core.config import RunConfig, resolve
from agl_core.errors import ConfigError
from agl_core.interfaces import Identity, Problem
from agl_core.store import MemoryStore
from tests.core.gateway.conftest import OPTIONS, World, make_world  # noqa: F401  a fixture


@pytest.fixture(autouse=True)
def no_limits_left() -> Iterator[None]:
    before = THROTTLES.set(None)
    yield
    THROTTLES.reset(before)


class TestPlugin(PluginContract):
    plugin = "agl_limits.plugin"


def configured(**limits: Any) -> RunConfig:
    return resolve({"model": "m", "limits": limits})


async def asked(admission: Any, agent: str = "writer", **given: str) -> int:
    """The status of a request."""
    alias = given.pop("alias", "")
    identity = Identity(rollout_id="r", attempt_id="a", call_id="c", agent=agent, alias=alias)
    about = {"key": "k", "address": "10.0.0.1", "policy": "p", **given}
    try:
        await admission.admit(identity, **about)
    except Problem as problem:
        return problem.status
    return 200


@asynccontextmanager
async def limited(**limits: Any):
    admission = make_admission(configured(**limits))
    try:
        yield admission
    finally:
        await admission.close()


async def test_each_kind_has_windows_of_its_own() -> None:
    async with limited(per_key="2/hour") as limits:
        found = [await asked(limits, key=key) for key in "aabab"]
        assert found == [200, 200, 200, 429, 200]
    async with limited(per_agent="1/hour") as limits:
        found = [await asked(limits, agent, key=key) for agent, key in ("xa", "xb", "ya")]
        assert found == [200, 429, 200]
    async with limited(per_policy="1/hour") as limits:
        assert [await asked(limits, policy=policy) for policy in "ppq"] == [200, 429, 200]
    async with limited(per_address="1/hour") as limits:
        assert [await asked(limits, address=each) for each in "ab"] == [200, 200]
        assert [await asked(limits, address=each) for each in ("a", "", "")] == [429, 200, 429]


async def test_a_named_agent_has_a_rate_of_its_own() -> None:
    async with limited(per_agent="1/hour", agents={"w*": "2/hour", "writer": "9/hour"}) as limits:
        assert [await asked(limits) for _ in range(3)] == [200, 200, 429]
        assert [await asked(limits, "judge") for _ in range(2)] == [200, 429]
        assert [await asked(limits, "judge", alias="wise") for _ in range(2)] == [200, 200]
        counts = [(each.name, each.rate, each.allowed, each.refused) for each in limits.use]
        assert counts == [
            ("agent w*", "2/hour", 4, 1),
            ("agent writer", "9/hour", 0, 0),
            ("agent", "1/hour", 1, 1),
        ]


async def test_a_refusal_says_what_is_allowed_and_when() -> None:
    async with limited(per_agent="1/minute") as limits:
        assert await asked(limits) == 200
        identity = Identity(rollout_id="r", attempt_id="a", call_id="c", agent="writer")
        with pytest.raises(Problem, match=r"of agent 'writer': 1/minute are allowed") as refused:
            await limits.admit(identity, key="secret", address="10.0.0.1", policy="p")
        headers = refused.value.headers
        assert refused.value.retry
        assert 1 <= int(headers["retry-after"]) <= 121
        assert headers["x-ratelimit-limit"] == "1"
        assert headers["x-ratelimit-remaining"] == "0"
        assert headers["ratelimit-policy"] == '"agent";q=1;w=60'
    async with limited(per_key="1/minute") as limits:
        assert await asked(limits, key="secret") == 200
        with pytest.raises(Problem) as refused:
            await limits.admit(identity, key="secret", address="10.0.0.1", policy="p")
        assert "secret" not in refused.value.message


async def test_gateways_that_share_a_redis_count_together(redis: Any) -> None:
    given = {"per_agent": "2/hour", "redis": redis.url}
    async with (
        limited(**given) as one,
        limited(**given) as other,
        limited(**given, prefix="x") as x,
    ):
        found = [await asked(each) for each in (one, other, one, other, x)]
    assert found == [200, 200, 429, 429, 200]


async def test_the_address_of_redis_may_stand_in_the_environment(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_REDIS", redis.url)
    given = {"per_agent": "1/hour", "redis_env": "MY_REDIS"}
    async with limited(**given) as one, limited(**given) as other:
        assert [await asked(one), await asked(other)] == [200, 429]


async def test_without_redis_the_gateway_counts_by_itself_and_says_so_once(
    redis: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_module, "_AGAIN_S", 0.0)
    async with limited(per_agent="2/hour", redis=redis.url) as limits:
        redis.stop()
        with caplog.at_level(logging.WARNING):
            found = [await asked(limits) for _ in range(3)]
    assert found == [200, 200, 429]
    assert len(caplog.records) == 1
    assert "counts by itself" in caplog.text


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"per_agent": "many"}, r"limits\.per_agent = 'many'.*is no rate"),
        ({"per_agnet": "1/minute"}, r"per_agent"),
        ({"agents": {"writer": "0/minute"}}, r"is no rate"),
        ({"endpoints": {"https://x/v1": {}}}, r"limits nothing"),
        ({"endpoints": {"https://x/v1": {"requests": "1"}}}, r"is no rate"),
        ({"endpoints": {"https://x/v1": {"request": "1/minute"}}}, r"requests"),
    ],
)
def test_a_wrong_option_is_named(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_sections(configured(**limits), load_plugins())


def test_a_wrong_address_of_redis_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="redis://HOST:PORT"):
        make_admission(configured(per_key="1/minute", redis="http://host"))


async def make_limited(make_world: Any, **limits: Any) -> World:  # noqa: F811
    """A world whose gateway has these limits."""
    world: World = await make_world()
    await world.gateway.stop()
    world.gateway = gateway_server(world.store, OPTIONS, load_plugins(), configured(**limits))
    world.stack.push_async_callback(world.gateway.stop)
    await world.route("trained", ("*",), trainable=True)
    await world.gateway.start()
    return world


async def test_the_gateway_of_a_run_has_the_limits_of_its_section(make_world: Any) -> None:  # noqa: F811
    world = await make_limited(make_world, per_agent="1/hour")
    attempt = await world.attempt()
    await world.ask(attempt)
    async with world.post(world.headers(attempt)) as answer:
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["ratelimit"].startswith('"agent";r=0;t=')
    statuses = [call.status_code for call in await world.calls(attempt)]
    assert statuses == [200, 429]


async def test_the_client_of_openai_waits_as_long_as_it_is_asked_to(make_world: Any) -> None:  # noqa: F811
    world = await make_limited(make_world, per_agent="1/second")
    attempt = await world.attempt()
    client = openai.AsyncOpenAI(
        base_url=f"{world.gateway.url}/v1",
        api_key=world.gateway.attempt_key(attempt.rollout_id, attempt.id),
        default_headers=world.headers(attempt),
        max_retries=9,
    )
    async with client:
        for text in ("one", "two"):
            asked: Any = [{"role": "user", "content": text}]
            answer = await client.chat.completions.create(model="m", messages=asked)
            assert text in (answer.choices[0].message.content or "")
    statuses = [call.status_code for call in await world.calls(attempt)]
    assert statuses.count(200) == 2
    assert 429 in statuses
    assert statuses[-1] == 200


async def test_the_dashboard_reads_how_limits_are_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    endpoints = {"https://outside/v1": {"requests": "5/hour"}}
    config = resolve(
        {
            "model": "m",
            "name": "run",
            "directory": str(tmp_path),
            "limits": {"per_agent": "1/hour", "endpoints": endpoints},
        }
    )
    plugin.agl_config_resolved(config)
    throttle = HttpBackend("https://outside/v1")._throttle
    assert throttle is not None
    await throttle.turn(b"{}", timeout_s=1.0)
    admission = make_admission(config)
    assert [await asked(admission) for _ in range(3)] == [200, 429, 429]
    await admission.close()
    (state,) = read_services(tmp_path / "run")
    assert state.title == "Limits"
    assert state.rows == [
        ["at the gateway, agent", "1/hour", 1, 2, ""],
        ["https://outside/v1", "requests 5/hour", 1, 0, 0.0],
    ]


def test_a_run_without_the_section_has_no_limits() -> None:
    gateway = gateway_server(MemoryStore(), OPTIONS, load_plugins(), resolve({"model": "m"}))
    assert not gateway._endpoints.admissions


async def test_requests_at_once_get_no_more_than_the_rate() -> None:
    async with limited(per_agent="20/hour", per_key="30/hour") as limits:
        found = await asyncio.gather(*(asked(limits) for _ in range(50)))
    assert sorted(found) == [200] * 20 + [429] * 30


def test_a_gateway_in_a_process_of_its_own_takes_the_section_of_a_run_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []

    async def serve(store: Any, plugins: Any, config: Any, **given: Any) -> None:
        del store, given
        gateway = gateway_server(MemoryStore(), OPTIONS, plugins, config)
        seen.extend(gateway._endpoints.admissions)
        seen.append(HttpBackend("https://outside/v1")._throttle)

    monkeypatch.setattr("agl_remote._gateway_serve.serve_gateway", serve)
    run = tmp_path / "run.toml"
    run.write_text(
        'model = "m"\n[limits]\nper_agent = "1/hour"\n'
        '[limits.endpoints."https://outside/*"]\nrequests = "1/hour"\n'
    )
    target = ["gateway", "--store", str(tmp_path / "store.db")]
    done = CliRunner().invoke(cli, [*target, "--config", str(run)])
    assert done.exit_code == 0, done.output
    limits, throttle = seen
    assert [each.rate for each in (*limits.use, throttle.use)] == ["1/hour", "requests 1/hour"]
    run.write_text('model = "m"\n[limits]\nper_agent = "many"\n')
    refused = CliRunner().invoke(cli, [*target, "--config", str(run)])
    assert refused.exit_code != 0
    assert "limits.per_agent = 'many'" in refused.output
    assert "Traceback" not in refused.output
