"""Which key opens what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.gateway.conftest import ASK, OPERATOR
from tests.plugins.otlp.test_codec import body, otel

openai = pytest.importorskip("openai")


def client_key(world: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.gateway.client_key}"}


BODIES: dict[str, Any] = {
    "/v1/chat/completions": ASK,
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/tokenize": {"messages": []},
    "/v1/rewards": {"value": 1000},
    "/v1/traces": body(otel(agl__reward__value=1000.0)),
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("by", ["headers", "url"])
async def test_the_key_of_one_attempt_opens_no_other(world: Any, path: str, by: str) -> None:
    """F2: an attempt cannot call, reward or trace as its sibling, however it names it."""
    mine, sibling = await world.attempt(), await world.attempt()
    url = world.gateway.url
    if by == "url":
        url += f"/r/{sibling.rollout_id}/a/{sibling.id}"
    for key in (world.key(mine), client_key(world)):
        named = world.headers(sibling) if by == "headers" else {}
        headers = {**named, **key, "Content-Type": "application/json"}
        data = json.dumps(BODIES[path]).encode()
        async with world.session.post(url + path, data=data, headers=headers) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (403, "wrong_attempt_key")
        assert sibling.id in error["message"]
        assert "llm.api_key" in error["message"]
    assert world.server.log == []
    assert await world.store.spans([mine.rollout_id, sibling.rollout_id]) == []


async def test_spans_that_name_their_attempts_need_the_key_of_each(world: Any) -> None:
    """F2: only the operators' key, which a collector may have, sends for many attempts."""
    mine, sibling = await world.attempt(), await world.attempt()
    rows = [
        otel(n, agl__rollout=a.rollout_id, agl__attempt=a.id)
        for n, a in enumerate((mine, sibling), 1)
    ]
    answers = []
    for key in (client_key(world), world.key(mine), OPERATOR, {}):
        headers = {"Content-Type": "application/json", **key}
        data = json.dumps(body(*rows)).encode()
        url = world.gateway.url + "/v1/traces"
        async with world.session.post(url, data=data, headers=headers) as answer:
            answers.append((answer.status, await answer.json()))
    refused = [told.get("partialSuccess", {}).get("rejectedSpans") for _, told in answers]
    assert [status for status, _ in answers] == [200, 200, 200, 401]
    assert refused == ["2", "1", None, None]
    assert "API key" in answers[1][1]["partialSuccess"]["errorMessage"]


async def test_the_clients_key_names_the_run_and_opens_no_attempt(world: Any) -> None:
    """F2: a request that bears it without identity is known to be this run's."""
    async with world.post(client_key(world)) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == "identity_missing"
    async with world.post({"Authorization": "Bearer sk-of-a-user"}) as answer:
        assert answer.status == 401


@pytest.mark.parametrize("key", ["client", "attempt"])
async def test_no_agent_reads_the_metrics(world: Any, key: str) -> None:
    """F2: they are the operators'."""
    attempt = await world.attempt()
    given = client_key(world) if key == "client" else world.key(attempt)
    async with world.session.get(world.gateway.url + "/metrics", headers=given) as answer:
        assert answer.status == 401
        assert "AGL_API_KEY" in (await answer.json())["error"]["message"]


async def test_the_scheme_of_the_key_has_no_case(world: Any) -> None:
    attempt = await world.attempt()
    headers = world.headers(attempt)
    headers["Authorization"] = headers["Authorization"].replace("Bearer", "bearer")
    async with world.post(headers) as answer:
        assert answer.status == 200


async def test_an_sdk_is_told_of_a_wrong_key_once(world: Any) -> None:
    mine, sibling = await world.attempt(), await world.attempt()
    url = f"{world.gateway.url}/r/{sibling.rollout_id}/a/{sibling.id}/v1"
    key = world.gateway.attempt_key(mine.rollout_id, mine.id)
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        with pytest.raises(openai.PermissionDeniedError, match="a separate key"):
            await client.chat.completions.create(**ASK)
