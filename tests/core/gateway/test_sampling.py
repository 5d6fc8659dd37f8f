from __future__ import annotations

from typing import Any

import pytest

from agl_core.gateway.app import GatewayOptions
from agl_core.gateway.dialects.chat import ChatRequest, derive_seed


async def test_run_replaces_temperature_and_caps_the_length(world: Any) -> None:
    attempt = await world.attempt(metadata={"sampling": {"temperature": 0.7, "max_tokens": 30}})
    await world.ask(attempt, temperature=0, max_tokens=500)
    await world.ask(attempt, max_completion_tokens=20)
    await world.ask(attempt)
    first, second, third = (answered.body for answered in world.server.log)
    assert (first["temperature"], first["max_tokens"]) == (0.7, 30)
    assert (second["temperature"], second["max_completion_tokens"]) == (0.7, 20)
    assert "max_tokens" not in second
    assert third["max_tokens"] == 30
    calls = await world.calls(attempt)
    assert [call.sampling.max_tokens for call in calls] == [30, 20, 30]
    assert {call.sampling.temperature for call in calls} == {0.7}
    assert world.gateway.losses.counts == {}


async def test_unset_overrides_leave_the_client_alone(world: Any) -> None:
    attempt = await world.attempt(metadata={"sampling": {"temperature": None, "max_tokens": None}})
    await world.ask(attempt, temperature=0.3)
    (call,) = await world.calls(attempt)
    assert call.sampling.temperature == 0.3
    assert call.sampling.max_tokens is None


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"temperature": 0}, "sampling_temperature_zero"),
        ({"top_p": 0.9}, "sampling_top_p"),
        ({"top_k": 5}, "sampling_top_k"),
        ({"top_k": "many"}, "sampling_top_k"),
        ({"presence_penalty": 0.5}, "sampling_penalties"),
        ({"logit_bias": {"5": 1}}, "sampling_penalties"),
    ],
)
async def test_distorted_sampling_is_counted(world: Any, body: dict[str, Any], cause: str) -> None:
    train, val = await world.attempt(), await world.attempt(mode="val")
    await world.ask(train, **body)
    await world.ask(train, "judge", **body)
    await world.ask(val, **body)
    await world.calls(train)
    await world.calls(val)
    assert world.gateway.losses.counts == {cause: 1}


@pytest.mark.parametrize("top_k", [None, 0, -1])
async def test_a_top_k_that_cuts_nothing_is_no_distortion(world: Any, top_k: int | None) -> None:
    attempt = await world.attempt()
    await world.ask(attempt, top_k=top_k)
    await world.calls(attempt)
    assert world.gateway.losses.counts == {}


async def test_only_answers_that_came_whole_count_as_distorted(world: Any) -> None:
    world.server.fail(1, status=400)
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), top_p=0.5) as answer:
        assert answer.status == 400
    await world.calls(attempt)
    assert world.gateway.losses.counts == {}


async def test_seeds_repeat_per_rollout_and_differ_by_occurrence(world: Any) -> None:
    one, two = await world.attempt(seed=5), await world.attempt(seed=5)
    other = await world.attempt(seed=6)
    for attempt in (one, one, two, other):
        await world.ask(attempt)
    await world.ask(two, "planner")
    await world.ask(two, seed=123)
    await world.ask(two, "judge")
    a, b, c, d, e, f, g = (answered.body.get("seed") for answered in world.server.log)
    assert a == c
    assert len({a, b, d, e}) == 4
    assert f == 123
    assert g is None
    (first, *_) = await world.calls(one)
    assert first.sampling.seed == a


async def test_deterministic_runs_seed_frozen_agents_too(make_world: Any) -> None:
    world = await make_world(None, GatewayOptions(deterministic=True))
    attempt = await world.attempt()
    await world.ask(attempt, "judge")
    assert isinstance(world.server.log[0].body["seed"], int)


def test_seed_ignores_spacing_and_key_order() -> None:
    one = ChatRequest(b'{"messages": [{"role": "user", "content": "x"}], "model": "a"}')
    two = ChatRequest(b'{"model":"b","messages":[{"content":"x","role":"user"}],"stream":true}')
    three = ChatRequest(b'{"messages":[{"content":"y","role":"user"}]}')
    assert one.digest() == two.digest() != three.digest()
    seed = derive_seed(1, agent="a", digest=one.digest(), occurrence=0)
    assert 0 <= seed < 2**31


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "truncated"),
        (b"[]", "object"),
        (b"{}", "messages"),
        (b'{"messages": "hi"}', "messages"),
        (b'{"messages": [], "n": "two"}', "n"),
        (b'{"messages": ["\xff"]}', "chat request"),
    ],
)
async def test_a_bad_body_is_400_and_names_the_field(world: Any, body: bytes, field: str) -> None:
    attempt = await world.attempt()
    url = world.gateway.url + "/v1/chat/completions"
    async with world.session.post(url, data=body, headers=world.headers(attempt)) as answer:
        assert answer.status == 400
        assert field in (await answer.json())["error"]["message"]
    assert world.gateway.in_flight == 0
    (call,) = await world.calls(attempt)
    assert call.status_code == 400
    assert field in call.error
