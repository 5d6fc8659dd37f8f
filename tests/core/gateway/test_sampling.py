from __future__ import annotations

from typing import Any

import pytest

from agl_core.gateway import GatewayOptions
from agl_core.gateway._chat import ChatRequest, derive_seed

CONSTRAINED: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    {"function_call": {"name": "add"}},
    {"guided_json": {"type": "object"}},
    {"guided_regex": "a+"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": "root ::= a"},
    {"structured_outputs": {"choice": ["a"]}},
    {"regex": "a+"},
    {"ebnf": "root ::= a"},
    {"bad_words": ["no"]},
    {"min_tokens": 4},
    {"allowed_token_ids": [1, 2]},
    {"ignore_eos": True},
    {"typical_p": 0.9},
]
UNCONSTRAINED: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": None},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
    {"min_tokens": 0, "ignore_eos": False, "bad_words": [], "typical_p": 1.0},
    {"parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}},
]


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


@pytest.mark.parametrize(
    ("asked", "sent", "recorded"),
    [
        ({"max_tokens": -1}, {"max_tokens": 64}, 64),
        ({"max_completion_tokens": -1}, {"max_completion_tokens": 64}, 64),
        (
            {"max_tokens": 500, "max_completion_tokens": 30},
            {"max_tokens": 64, "max_completion_tokens": 30},
            30,
        ),
        (
            {"max_tokens": 20, "max_completion_tokens": 500},
            {"max_tokens": 20, "max_completion_tokens": 64},
            20,
        ),
        (
            {"max_tokens": -1, "max_completion_tokens": -1},
            {"max_tokens": 64, "max_completion_tokens": 64},
            64,
        ),
    ],
)
async def test_no_name_of_the_limit_passes_the_cap(
    world: Any, asked: dict[str, int], sent: dict[str, int], recorded: int
) -> None:
    """C12: negative limits and both names at once stay at or below ``rollout.max_tokens``."""
    attempt = await world.attempt(metadata={"sampling": {"max_tokens": 64}})
    await world.ask(attempt, **asked)
    body = world.server.log[0].body
    names = ("max_tokens", "max_completion_tokens")
    assert {name: body[name] for name in names if name in body} == sent
    (call,) = await world.calls(attempt)
    assert call.sampling.max_tokens == recorded


async def test_training_replaces_a_clients_seed(world: Any) -> None:
    """C10: with the client's seed all attempts of a group would be one and the same."""
    group = [await world.attempt(seed=seed) for seed in range(4)]
    for attempt in group:
        await world.ask(attempt, seed=42)
    seeds = [answered.body["seed"] for answered in world.server.log]
    assert len(set(seeds)) == 4
    (call,) = await world.calls(group[0])
    assert call.sampling.seed == seeds[0]
    assert world.gateway.losses.counts == {"client_seeds_replaced": 4}


async def test_a_clients_seed_stays_where_nothing_is_trained(world: Any) -> None:
    """C10: evaluations and frozen agents sample as their program says."""
    val, train = await world.attempt(mode="val"), await world.attempt()
    await world.ask(val, seed=42)
    await world.ask(train, "judge", seed=42)
    assert [answered.body["seed"] for answered in world.server.log] == [42, 42]
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
        *((body, "sampling_constrained") for body in CONSTRAINED),
    ],
)
async def test_distorted_sampling_is_counted(world: Any, body: dict[str, Any], cause: str) -> None:
    train, val = await world.attempt(), await world.attempt(mode="val")
    await world.ask(train, **body)
    await world.ask(train, "judge", **body)
    await world.ask(val, **body)
    await world.calls(train)
    await world.calls(val)
    """C11: what restricts the tokens of a trained answer is counted."""
    assert world.gateway.losses.counts == {cause: 1}


@pytest.mark.parametrize("body", UNCONSTRAINED)
async def test_fields_that_restrict_nothing_are_no_constraint(
    world: Any, body: dict[str, Any]
) -> None:
    """C11: the neutral values of the same fields."""
    attempt = await world.attempt()
    await world.ask(attempt, **body)
    (call,) = await world.calls(attempt)
    assert call.sampling.constraints == []
    assert world.gateway.losses.counts == {}


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
    assert f == b
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
