"""The gateway's route for triplets, and the policy that routes of plugins see."""

import aiohttp
import pytest
from agl_compat._route import TripletIngest
from agl_compat._triplets import ATTRIBUTE

from agl_core.errors import EngineError
from agl_core.interfaces import Scored
from tests.core.gateway import conftest as gateway

world, make_world = gateway.world, gateway.make_world


@pytest.fixture(autouse=True)
def route(monkeypatch):
    monkeypatch.setitem(gateway.ROUTES, "POST /triplets", TripletIngest)


def triplet(**more):
    return {"id": "call_1", "prompt": [1, 2], "response": [3], "logprobs": [-0.5], **more}


async def send(world, attempt, *triplets, agent="writer", **body):
    headers = world.headers(attempt, agent)
    document = {"triplets": [*triplets], **body}
    url = world.gateway.url + "/v1/triplets"
    async with world.session.post(url, json=document, headers=headers) as answer:
        return answer.status, await answer.json()


async def recorded(world, attempt):
    spans = await world.store.spans([attempt.rollout_id])
    return [span for span in spans if span.call is not None]


async def test_a_triplet_is_recorded_as_a_call_of_its_policy(world):
    attempt = await world.attempt()

    assert await send(world, attempt, triplet()) == (200, {"calls": ["call_1"]})

    (span,) = await recorded(world, attempt)
    assert span.attributes[ATTRIBUTE] == "given"
    call = span.call
    assert (call.policy, call.agent, call.trainable, call.complete) == (
        "trained",
        "writer",
        True,
        True,
    )
    assert (list(call.prompt_token_ids), list(call.choices[0].token_ids)) == ([1, 2], [3])
    assert (list(call.choices[0].logprobs), call.logprobs_mode) == ([-0.5], "processed")


async def test_without_log_probabilities_the_backend_computes_them(world, monkeypatch):
    async def score(prompt, answer, *, temperature):
        assert (prompt, answer, temperature) == ([1, 2], [3], 0.7)
        return Scored([-2.0], 5)

    monkeypatch.setattr(world.backend, "score", score)
    attempt = await world.attempt()

    status, _ = await send(world, attempt, triplet(logprobs=None, temperature=0.7))

    (span,) = await recorded(world, attempt)
    assert status == 200
    assert span.attributes[ATTRIBUTE] == "computed"
    assert (list(span.call.choices[0].logprobs), span.call.policy_version) == ([-2.0], 5)


async def test_what_no_backend_computes_is_recorded_as_missing(world):
    attempt = await world.attempt()
    await send(world, attempt, triplet(logprobs=None))
    (span,) = await recorded(world, attempt)
    assert (span.attributes[ATTRIBUTE], span.call.logprobs_mode) == ("none", "none")


async def test_a_backend_that_fails_is_an_engine_failure(world, monkeypatch):
    async def broken(prompt, answer, *, temperature):
        raise EngineError("stopped")

    monkeypatch.setattr(world.backend, "score", broken)
    attempt = await world.attempt()
    status, body = await send(world, attempt, triplet(logprobs=None))
    assert (status, body["error"]["code"]) == (503, "engine_unavailable")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"response": [40]},
            "token id 40, which is not one of policy 'small', whose ids are 0 to 9",
        ),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": []}, "empty prompt"),
        ({"response": []}, "empty response"),
        ({"logprobs": [-0.5, -0.5]}, "1 response ids but 2 log-probabilities"),
        ({"logprobs": [0.5]}, "log-probability 0.5"),
        ({"logprobs": [-9999.0]}, "log-probability -9999"),
    ],
)
async def test_what_is_not_exact_is_refused_and_nothing_is_recorded(world, given, message):
    await world.route("small", ("tiny",), trainable=True, vocab_size=10)
    world.gateway._router._routes = dict(
        sorted(world.gateway._router._routes.items(), key=lambda item: item[0] != "small")
    )
    attempt = await world.attempt()

    status, body = await send(world, attempt, triplet(), triplet(**given), agent="tiny")

    assert (status, body["error"]["code"]) == (400, "inexact_triplet")
    assert message in body["error"]["message"]
    assert body["error"]["message"].startswith("Triplet 2 of 2")
    assert await recorded(world, attempt) == []


async def test_other_bodies_are_refused(world):
    attempt = await world.attempt()
    for triplets, more in (((), {}), ((triplet(id=3),), {}), ((triplet(),), {"other": 1})):
        status, body = await send(world, attempt, *triplets, **more)
        assert (status, body["error"]["code"]) == (400, "invalid_body")


async def test_an_ended_attempt_takes_no_triplet(world):
    attempt = await world.attempt()
    await world.gateway.seal(attempt.id)
    status, _ = await send(world, attempt, triplet())
    assert status == 410


async def test_a_key_of_another_attempt_is_refused(world):
    attempt, other = await world.attempt(), await world.attempt()
    headers = {**world.headers(attempt), **world.key(other)}
    url = world.gateway.url + "/v1/triplets"
    async with aiohttp.ClientSession() as session:
        answer = await session.post(url, json={"triplets": [triplet()]}, headers=headers)
        assert answer.status == 403


async def test_triplets_of_a_frozen_policy_are_recorded_untrained(world):
    attempt = await world.attempt()
    await send(world, attempt, triplet(logprobs=None), agent="visitor")
    (span,) = await recorded(world, attempt)
    assert (span.call.policy, span.call.trainable) == ("frozen", False)
