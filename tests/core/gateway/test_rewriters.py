"""Plugins that change requests: what the model, the record, the seed and the client get."""

from __future__ import annotations

import asyncio
import json

import pytest
from agl_counting._count import TokenCounting
from agl_responses._request import read
from agl_testing.fake_openai import FakeOptions

from agl_core import semconv
from agl_core.gateway import GatewayServer
from agl_core.types import AttemptStatus, Failure, FailureKind, Limits
from tests.core.gateway.conftest import OPTIONS

HEAD = {"role": "system", "content": "Be kind."}
ASKED = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look."}}


class Shouting:
    """Writes an agent's messages and its tools' descriptions in capitals."""

    prepared = 0

    def __init__(self, store):
        self.store = store

    async def prepare(self, rollout):
        Shouting.prepared += 1
        return self.rewrite if rollout.metadata.get("shout") else None

    def rewrite(self, identity, messages, tools, losses):
        if identity.known_as == "broken":
            raise RuntimeError("no voice")
        losses.add("shouted")
        if identity.known_as != "writer":
            return messages, tools
        louder = json.loads(json.dumps(tools).replace("Look.", "LOOK."))
        return [{**each, "content": each["content"].upper()} for each in messages], louder


class Asking:
    """Adds a question mark: it comes after `Shouting`."""

    def __init__(self, store):
        del store

    async def prepare(self, rollout):
        return self.rewrite if rollout.metadata.get("ask") else None

    def rewrite(self, identity, messages, tools, losses):
        return [{**each, "content": each["content"] + "?"} for each in messages], tools


class Disarming:
    """Takes the tools away."""

    def __init__(self, store):
        del store

    async def prepare(self, rollout):
        return self.rewrite if rollout.metadata.get("disarm") else None

    def rewrite(self, identity, messages, tools, losses):
        return messages, []


@pytest.fixture
async def make_loud(make_world):
    async def make(options=None):
        world = await make_world(options)
        await world.gateway.stop()
        world.gateway = GatewayServer(
            world.store,
            OPTIONS,
            routes={"POST /tokenize": TokenCounting},
            dialects={"POST /responses": read},
            rewriters=[Shouting, Asking, Disarming],
        )
        await world.route("trained", ("writer", "planner"), trainable=True)
        await world.route("frozen", ("*",), trainable=False)
        await world.gateway.start()
        world.stack.push_async_callback(world.gateway.stop)
        return world

    return make


@pytest.fixture
async def world(make_loud):
    return await make_loud()


def loud(**more):
    return {"metadata": {"shout": True, **more}}


@pytest.mark.parametrize("stream", [False, True])
async def test_model_and_record_get_the_changed_request_of_the_agent_alone(world, stream):
    attempt = await world.attempt(**loud())
    body = {"messages": [HEAD, ASKED], "tools": [TOOL], "stream": stream, "top_k": 3}
    await world.ask(attempt, "writer", **body)
    await world.ask(attempt, "planner", **body)
    changed, same = world.server.log
    assert [each["content"] for each in changed.body["messages"]] == ["BE KIND.", "HI"]
    assert changed.body["tools"][0]["function"] == {"name": "look", "description": "LOOK."}
    assert changed.body["top_k"] == 3
    assert (same.body["messages"], same.body["tools"]) == ([HEAD, ASKED], [TOOL])
    calls = await world.calls(attempt)
    for call, answer in zip(calls, world.server.log, strict=True):
        assert call.messages == answer.body["messages"]
        assert call.tools == answer.body["tools"]
        assert call.prompt_token_ids.tolist() == answer.prompt_token_ids
    assert world.gateway.losses.counts["shouted"] == 2


async def test_without_a_change_nothing_is_called_and_the_body_stays(world):
    attempt = await world.attempt()
    assert world.gateway._attempts.find(attempt.id).rewrites == ()
    odd = '{"model":"m",  "messages":[ {"content":"x","role":"user"} ], "tools": []}'
    headers = {**world.headers(attempt), "content-type": "application/json"}
    url = f"{world.gateway.url}/v1/chat/completions"
    async with world.session.post(url, data=odd, headers=headers) as answer:
        assert answer.status == 200
    assert "shouted" not in world.gateway.losses.counts
    assert world.server.log[0].body["messages"] == [{"content": "x", "role": "user"}]
    assert world.server.log[0].body["tools"] == []


async def test_rewriters_act_in_their_order(world):
    attempt = await world.attempt(**loud(ask=True))
    await world.ask(attempt, messages=[ASKED])
    assert world.server.log[0].body["messages"][0]["content"] == "HI?"


async def test_tools_that_a_rewriter_takes_away_are_not_sent(world):
    attempt = await world.attempt(metadata={"disarm": True})
    await world.ask(attempt, messages=[ASKED], tools=[TOOL])
    assert "tools" not in world.server.log[0].body
    (call,) = await world.calls(attempt)
    assert call.tools == []


async def test_the_seed_of_a_call_is_that_of_the_clients_text(world):
    seeds = []
    for rollout in ({}, loud()):
        attempt = await world.attempt(**rollout)
        await world.ask(attempt, messages=[HEAD, ASKED])
        await world.ask(attempt, messages=[HEAD, ASKED])
        calls = await world.calls(attempt)
        seeds.append([call.sampling.seed for call in calls])
        assert [each.body["seed"] for each in world.server.log[-2:]] == seeds[-1]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_repeats_the_clients_instructions(world, stream):
    attempt = await world.attempt(**loud())
    tool = {"type": "function", "name": "look", "description": "Look.", "parameters": {}}
    body = {"model": "m", "input": "hi", "instructions": "Be kind.", "tools": [tool]}
    url = f"{world.gateway.url}/v1/responses"
    given = {**body, "stream": stream}
    async with world.session.post(url, json=given, headers=world.headers(attempt)) as answer:
        assert answer.status == 200, await answer.text()
        said = await answer.text()
    if stream:
        data = [line[6:] for line in said.splitlines() if line.startswith("data: {")]
        response = [json.loads(each)["response"] for each in data if '"response":{' in each][-1]
    else:
        response = json.loads(said)
    assert response["instructions"] == "Be kind."
    assert response["tools"][0]["description"] == "Look."
    sent = world.server.log[0].body
    assert [each["content"] for each in sent["messages"]] == ["BE KIND.", "HI"]
    assert sent["tools"][0]["function"]["description"] == "LOOK."
    (call,) = await world.calls(attempt)
    assert call.messages == sent["messages"]


async def test_tokens_are_counted_of_the_changed_prompt_and_losses_once(make_loud):
    world = await make_loud(FakeOptions(tokenize=True, stable=True))
    counts = []
    for rollout in ({}, loud(ask=True)):
        attempt = await world.attempt(**rollout)
        async with world.post(
            world.headers(attempt), path="/v1/tokenize", messages=[HEAD, ASKED], tools=[TOOL]
        ) as answer:
            assert answer.status == 200, await answer.text()
            counts.append((await answer.json())["count"])
        await world.ask(attempt, messages=[HEAD, ASKED], tools=[TOOL])
        assert len(world.server.log[-1].prompt_token_ids) == counts[-1]
    assert counts[0] != counts[1]
    assert world.gateway.losses.counts["shouted"] == 1


async def test_a_rewriter_that_fails_fails_the_request_and_is_recorded(world):
    attempt = await world.attempt(**loud())
    async with world.post(world.headers(attempt, "broken"), messages=[ASKED]) as answer:
        assert answer.status == 502
        assert "no voice" in (await answer.json())["error"]["message"]
    assert world.server.log == []
    (call,) = await world.calls(attempt)
    assert "RuntimeError: no voice" in call.error
    assert call.messages == [ASKED]


async def test_a_drained_call_is_changed_once(world):
    attempt = await world.attempt(**loud(ask=True))
    held = asyncio.Event()

    async def hold(answer, position):
        if not position:
            await held.wait()

    world.server.before_send = hold
    asking = asyncio.create_task(world.ask(attempt, messages=[ASKED]))
    await world.until(lambda: world.server.in_flight == 1)
    await world.gateway.pause()
    assert await world.gateway.drain(timeout_s=0) == 1
    held.set()
    await world.gateway.resume()
    await asking
    sent = [each.body["messages"][0]["content"] for each in world.server.log]
    assert sent == ["HI?", "HI?"]
    assert world.gateway.losses.counts["shouted"] == 1


async def test_a_replay_is_keyed_by_the_changed_text(world):
    limits = Limits(timeout_s=600, lease_s=600, max_attempts=4, retry_on=tuple(FailureKind))
    first = await world.attempt(metadata={"resume": "replay", "shout": True}, limits=limits)
    await world.ask(first, messages=[HEAD, ASKED])
    await world.gateway.seal(first.id)
    lost = Failure(kind=FailureKind.LOST, message="killed")
    await world.store.finish(first.id, status=AttemptStatus.LOST, failure=lost)
    (claim,) = await world.store.claim("w", timeout_s=100)
    await world.gateway.open(claim.rollout, claim.attempt)
    await world.ask(claim.attempt, messages=[HEAD, ASKED])
    await world.gateway.seal(claim.attempt.id)
    spans = await world.store.spans([claim.rollout.id])
    digests = {span.attributes[semconv.AGL_REQUEST_DIGEST] for span in spans if span.call}
    assert len(digests) == 1
    assert len(world.server.log) == 1
    assert spans[-1].call.messages[0]["content"] == "BE KIND."
    plain = await world.attempt(metadata={"resume": "replay"})
    await world.ask(plain, messages=[HEAD, ASKED])
    await world.gateway.seal(plain.id)
    (span,) = await world.store.spans([plain.rollout_id])
    assert span.attributes[semconv.AGL_REQUEST_DIGEST] not in digests


async def test_a_rewriter_is_asked_once_for_an_attempt(world):
    Shouting.prepared = 0
    attempt = await world.attempt(**loud())
    for _ in range(3):
        await world.ask(attempt, messages=[ASKED])
    assert Shouting.prepared == 1
