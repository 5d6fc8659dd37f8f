"""Agents in any language send their rewards; each counts once, or is refused with a reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agl_core.errors import StoreError
from agl_core.gateway import GatewayOptions
from agl_core.types import AttemptStatus, Limits, Reward, RewardTarget


async def send(world: Any, attempt: Any, body: Any, *, agent: str = "") -> tuple[int, Any]:
    """Status and answer of a reward that the URL says the sender of."""
    speaker = f"/agent/{agent}" if agent else ""
    url = f"{world.gateway.url}/r/{attempt.rollout_id}/a/{attempt.id}{speaker}/v1/rewards"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = world.key(attempt)
    async with world.session.post(url, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def stored(world: Any, attempt: Any) -> list[Any]:
    return await world.store.spans([attempt.rollout_id])


async def test_a_reward_is_for_the_attempt_unless_it_says_otherwise(world: Any) -> None:
    attempt = await world.attempt()
    status, told = await send(world, attempt, {"value": 0.5}, agent="w%20r")
    assert status == 200
    (span,) = await stored(world, attempt)
    assert (span.id, span.kind, span.name) == (told["id"], "reward", "main")
    assert (span.reward, span.agent) == (Reward(value=0.5), "w r")
    assert span.start_ns > 0


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"agent": "writer"}, RewardTarget(agent="writer")),
        ({"agent_run": "run_1"}, RewardTarget(agent_run="run_1")),
        (
            {"agent": "writer", "agent_run": "run_1"},
            RewardTarget(agent="writer", agent_run="run_1"),
        ),
        ({"call": "call_1"}, RewardTarget(call="call_1")),
        ({"call": "call_1", "choice": 2}, RewardTarget(call="call_1", choice=2)),
    ],
)
async def test_it_may_name_one_unit(world: Any, body: Any, target: RewardTarget) -> None:
    attempt = await world.attempt()
    status, _ = await send(world, attempt, {"value": True, "channel": "style", **body})
    assert status == 200
    (span,) = await stored(world, attempt)
    assert span.reward == Reward(value=1.0, channel="style", target=target)


async def test_it_may_say_why(world: Any) -> None:
    attempt = await world.attempt()
    assert (await send(world, attempt, {"value": 0.2, "why": " no price \n"}))[0] == 200
    long = {"value": 0.2, "why": "x" * 20_000, "id": "long"}
    assert (await send(world, attempt, long))[0] == 200
    assert (await send(world, attempt, long))[0] == 200
    short, cut = await stored(world, attempt)
    assert short.reward == Reward(value=0.2, why="no price")
    assert cut.reward.why == "x" * 16_384 + "... [3616 more characters]"
    assert world.gateway.losses.counts == {"truncated_value": 1}


async def test_headers_may_name_the_attempt(world: Any) -> None:
    attempt = await world.attempt()
    headers = world.headers(attempt, "writer", agent_run="run_1")
    async with world.session.post(
        world.gateway.url + "/v1/rewards", json={"value": 1}, headers=headers
    ) as answer:
        assert answer.status == 200
    (span,) = await stored(world, attempt)
    assert (span.agent, span.agent_run_id) == ("writer", "run_1")


async def test_a_reward_that_is_sent_again_under_its_id_counts_once(world: Any) -> None:
    attempt = await world.attempt()
    for _ in range(2):
        assert await send(world, attempt, {"value": 1, "id": "r1"}) == (200, {"id": "r1"})
    await send(world, attempt, {"value": 1})
    await send(world, attempt, {"value": 1})
    assert len(await stored(world, attempt)) == 3


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"", "invalid_body", '{"value": 1.0}'),
        (b"NaN", "invalid_body", "no reward"),
        (b'{"value": NaN}', "invalid_body", "no reward"),
        (b'"\xff"', "invalid_body", "no reward"),
        ([1.0], "invalid_body", "no reward"),
        ({}, "invalid_body", "value"),
        ({"value": 1, "score": 2}, "invalid_body", "score"),
        ({"value": 1, "choice": "a"}, "invalid_body", "choice"),
        ({"value": 1, "why": 3}, "invalid_body", "why"),
        (b'{"value": 1, "why": "\\ud83d"}', "invalid_body", "no reward"),
        (b'{"value": ' + b"[" * 60_000, "invalid_body", "recursion"),
        (b'{"value": 1e999}', None, "finite|range"),
        (b'{"value": 1' + b"0" * 400 + b"}", None, "finite|range"),
        ({"value": None}, "invalid_reward", "value: None .* finite number"),
        ({"value": "1.0"}, "invalid_reward", "value: '1.0' .* finite number"),
        ({"value": [1.0]}, "invalid_reward", "finite number"),
        ({"value": 1, "channel": ""}, "invalid_reward", "channel"),
        ({"value": 1, "agent": ""}, "invalid_reward", "agent"),
        ({"value": 1, "agent": "a", "call": "c"}, "invalid_reward", "one of call"),
        ({"value": 1, "choice": 0}, "invalid_reward", "name the call"),
        ({"value": 1, "call": "c", "choice": -1}, "invalid_reward", "from 0"),
    ],
)
async def test_what_is_no_reward_is_refused_with_the_fix(
    world: Any, body: Any, code: str | None, said: str
) -> None:
    attempt = await world.attempt()
    status, told = await send(world, attempt, body)
    assert status == 400
    assert told["error"]["code"] in ((code,) if code else ("invalid_body", "invalid_reward"))
    assert re.search(said, told["error"]["message"]), told
    assert await stored(world, attempt) == []
    assert world.gateway.losses.counts == {}


async def test_a_book_is_no_reward(world: Any) -> None:
    attempt = await world.attempt()
    status, told = await send(world, attempt, {"value": 1, "channel": "x" * 100_000})
    assert (status, told["error"]["code"]) == (413, "too_large")


async def test_nobody_and_strangers_are_refused(world: Any) -> None:
    attempt = await world.attempt()
    url = world.gateway.url + "/v1/rewards"
    key = world.key(attempt)
    async with world.session.post(url, json={"value": 1}, headers=key) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == "identity_missing"
    async with world.session.post(url, json={"value": 1}) as answer:
        assert answer.status == 401
    other = await world.attempt()
    theirs = world.gateway.attempt_key(attempt.rollout_id, other.id)
    mixed = {
        **world.headers(attempt),
        "x-agl-attempt": other.id,
        "Authorization": f"Bearer {theirs}",
    }
    async with world.session.post(url, json={"value": 1}, headers=mixed) as answer:
        assert answer.status == 409
        assert (await answer.json())["error"]["code"] == "attempt_unknown"
    assert world.gateway.losses.counts == {"late_reward": 1}


async def finish(world: Any, attempt: Any) -> None:
    await world.gateway.seal(attempt.id)
    await world.store.finish(attempt.id, status=AttemptStatus.SUCCEEDED, spans=[])


async def test_after_the_end_it_is_late_and_counted(world: Any) -> None:
    attempt = await world.attempt()
    await finish(world, attempt)
    status, told = await send(world, attempt, {"value": 1})
    assert (status, told["error"]["code"]) == (410, "attempt_sealed")
    assert await stored(world, attempt) == []
    assert world.gateway.losses.counts == {"late_reward": 1}


async def test_within_the_grace_of_the_run_it_still_counts(world: Any) -> None:
    attempt = await world.attempt(
        limits=Limits(timeout_s=600.0, lease_s=600.0, reward_grace_s=600.0)
    )
    await finish(world, attempt)
    assert (await send(world, attempt, {"value": 1}))[0] == 200
    assert len(await stored(world, attempt)) == 1
    await world.store.consume([attempt.rollout_id])
    assert (await send(world, attempt, {"value": 1}))[0] == 410
    assert world.gateway.losses.counts == {"late_reward": 1}


async def test_an_attempt_that_the_store_ended_takes_no_reward(world: Any) -> None:
    attempt = await world.attempt()
    await world.store.finish(attempt.id, status=AttemptStatus.SUCCEEDED, spans=[])
    status, told = await send(world, attempt, {"value": 1})
    assert (status, told["error"]["code"]) == (410, "attempt_sealed")
    assert world.gateway.losses.counts == {"late_reward": 1}


@pytest.mark.parametrize("ended", [False, True])
async def test_without_a_store_the_sender_is_told_to_try_again(
    world: Any, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    attempt = await world.attempt(
        limits=Limits(timeout_s=600.0, lease_s=600.0, reward_grace_s=600.0)
    )
    if ended:
        await finish(world, attempt)

    async def broken(spans: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(world.store, "add_spans", broken)
    status, told = await send(world, attempt, {"value": 1})
    assert (status, told["error"]["code"]) == (503, "store_unavailable")
    assert "the disk is full" in told["error"]["message"]
    assert world.gateway.losses.counts == {}
    monkeypatch.undo()
    assert (await send(world, attempt, {"value": 1}))[0] == 200


async def test_a_restarted_gateway_does_not_know(make_world: Any) -> None:
    world = await make_world(gateway=GatewayOptions(restartable=True))
    attempt = await world.attempt()
    url = f"{world.gateway.url}/r/{attempt.rollout_id}/a/other/v1/rewards"
    key = world.gateway.attempt_key(attempt.rollout_id, "other")
    headers = {"Authorization": f"Bearer {key}"}
    async with world.session.post(url, json={"value": 1}, headers=headers) as answer:
        assert answer.status == 503
