"""Prometheus reads what the gateway counted."""

from __future__ import annotations

import re
from types import SimpleNamespace

from agl_prometheus._route import PrometheusRoute
from agl_testing.attempts import ScriptedAttempt
from agl_testing.fake_openai import FakeOptions

from agl_core.store import MemoryStore
from agl_core.types import Losses
from tests.core.gateway.conftest import OPERATOR

SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)+)\})? (\S+)$')


def parsed(text):
    """Samples by name and labels; every line is a sample, or the help or type of a family."""
    samples, families = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in families
            families[name] = kind
        elif not line.startswith("# HELP "):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert (name, labels) not in samples
            samples[name, labels or ""] = float(value)
    for name, _ in samples:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in families or families[family] == "histogram"
    return samples


async def scrape(world, **headers):
    given = {**OPERATOR, **headers}
    async with world.session.get(world.gateway.url + "/metrics", headers=given) as reply:
        return reply.status, reply.headers.get("Content-Type"), await reply.text()


async def test_requests_tokens_and_times_are_counted_by_policy(world):
    attempt = await world.attempt()
    answers = [await world.ask(attempt), await world.ask(attempt, agent="else")]
    async with world.post(world.headers(attempt, "nobody"), model="") as reply:
        await reply.read()
    await world.idle()

    status, kind, text = await scrape(world)

    assert status == 200
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    samples = parsed(text)
    calls = await world.calls(attempt)
    trained = next(call for call in calls if call.policy == "trained")
    assert samples["agl_gateway_requests_total", 'policy="trained",status="200"'] == 1
    assert samples["agl_gateway_prompt_tokens_total", 'policy="trained"'] == len(
        trained.prompt_token_ids
    )
    assert samples["agl_gateway_sampled_tokens_total", 'policy="trained"'] == len(
        trained.choices[0].token_ids
    )
    frozen = answers[1]["usage"]["prompt_tokens"]
    assert samples["agl_gateway_prompt_tokens_total", 'policy="frozen"'] >= frozen
    assert samples["agl_gateway_request_seconds_count", 'policy="trained"'] == 1
    assert samples["agl_gateway_request_seconds_bucket", 'policy="trained",le="+Inf"'] == 1
    assert samples["agl_gateway_request_seconds_sum", 'policy="trained"'] > 0
    assert samples["agl_gateway_in_flight", ""] == 0
    assert samples["agl_gateway_open_attempts", ""] == 1


async def test_failures_and_losses_are_counted_too(make_world):
    world = await make_world(FakeOptions())
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), messages="no list") as reply:
        refused = reply.status
    await world.gateway.seal(attempt.id)
    async with world.post(world.headers(attempt)) as reply:
        assert reply.status == 410

    samples = parsed((await scrape(world))[2])

    assert samples["agl_gateway_requests_total", f'policy="",status="{refused}"'] == 1
    assert samples["agl_gateway_lost_total", 'cause="late_calls"'] == 1


async def test_metrics_are_behind_the_key(world):
    assert (await scrape(world, Authorization="Bearer wrong"))[0] == 401


async def test_an_agents_key_or_path_does_not_reach_them(world):
    attempt = await world.attempt()
    for path in ("/metrics", "/v1/metrics"):
        for key, refusal in ((world.key(attempt), 404), (OPERATOR, 401)):
            if (path, key) == ("/metrics", OPERATOR):
                continue
            async with world.session.get(world.gateway.url + path, headers=key) as reply:
                assert reply.status == (401 if path == "/metrics" else refusal)


async def rendered(route, *, in_flight=0, open_attempts=0):
    answer = await route.serve(SimpleNamespace(in_flight=in_flight, open_attempts=open_attempts))
    return parsed(answer.body.decode())


async def test_nothing_counted_is_text_too():
    assert await rendered(PrometheusRoute(MemoryStore(), Losses())) == {
        ("agl_gateway_in_flight", ""): 0,
        ("agl_gateway_open_attempts", ""): 0,
    }


async def test_times_fall_into_growing_buckets_and_odd_names_are_escaped():
    script = ScriptedAttempt()
    for seconds in (0.05, 0.06, 400.0):
        script.call("w", [1], [2], started_ns=0, ended_ns=int(seconds * 1e9), policy='a"\\\n\ud800')
    route = PrometheusRoute(MemoryStore(), Losses())
    for span in script.spans:
        route.recorded(span)

    samples = await rendered(route, in_flight=3, open_attempts=2)

    buckets = [
        value
        for (name, _), value in samples.items()
        if name == "agl_gateway_request_seconds_bucket"
    ]
    assert buckets == [1, *([2] * 11), 3]
    assert samples["agl_gateway_in_flight", ""] == 3
    assert samples["agl_gateway_open_attempts", ""] == 2
