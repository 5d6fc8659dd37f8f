from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from agl_core.errors import ConfigError, StaleAttemptError
from agl_core.gateway._routing import Route, Router, Target, identify, parse_path
from agl_core.interfaces import Backend, Identity, Problem
from agl_core.types import Mode, Policy, Rollout, Task


def router(*policies: Policy) -> Router:
    table = Router()
    for policy in policies:
        table.set(policy, object())  # type: ignore[arg-type]
    return table


def find(table: Router, agent: str, model: str, *, seed: int = 0, mode: Mode = "train") -> Route:
    identity = Identity(rollout_id="r", attempt_id="a", call_id="c", agent=agent)
    rollout = Rollout(id="r", task=Task(id="t"), run_id="run", mode=mode, seed=seed)
    return table.find(identity, model, rollout)


PLANS = Policy(name="plans", agents=("plan*",), model="small", trainable=True)
PLANNER = Policy(name="late", agents=("planner",))
REST = Policy(name="rest", agents=("*",), model="big")


@pytest.mark.parametrize(
    ("agent", "model", "expected"),
    [
        ("planner", "big", "plans"),
        ("writer", "small", "rest"),
        ("", "plans", "plans"),
        ("", "small", "plans"),
        ("", "gpt-4o", "rest"),
    ],
)
def test_agent_then_model_then_the_rest(agent: str, model: str, expected: str) -> None:
    found = find(router(PLANS, PLANNER, REST), agent, model)
    assert found.policy.name == expected


def test_unserved_agent_is_refused_and_names_the_policies() -> None:
    with pytest.raises(Problem, match="plans") as caught:
        find(router(PLANS), "writer", "gpt-4o")
    assert caught.value.status == 404


def test_replacing_a_policy_keeps_its_place() -> None:
    table = router(PLANS, REST)
    table.set(Policy(name="plans", agents=("*",), version=2), object())  # type: ignore[arg-type]
    assert find(table, "writer", "").policy.version == 2
    with pytest.raises(ConfigError, match="'rest'"):
        table["other"]


def test_a_policy_with_a_share_plays_in_training_only() -> None:
    """P1: it is drawn for agents of trainable policies, and serves no agent by its name."""
    table = router(Policy(name="foe", agents=("*",), model="x", share=1.0), PLANS, REST)
    assert find(table, "planner", "").policy.name == "foe"
    assert find(table, "planner", "", mode="val").policy.name == "plans"
    assert find(table, "planner", "", mode="test").policy.name == "plans"
    assert find(table, "writer", "").policy.name == "rest"
    assert find(table, "", "").policy.name == "rest"


def test_an_agent_is_played_by_one_policy_in_an_attempt() -> None:
    table = router(PLANS, Policy(name="foe", agents=("plan*",), share=0.4))
    played = [
        {find(table, "planner", model, seed=seed).policy.name for model in ("", "small", "foe")}
        for seed in range(400)
    ]
    assert all(len(names) == 1 for names in played)
    assert 0.3 < sum(names == {"foe"} for names in played) / 400 < 0.5


def test_path_spells_the_identity() -> None:
    path = f"/r/ro_1/a/at_1/agent/{quote('Autor ä/b', safe='')}/v1/chat/completions?x=1"
    assert parse_path(path.encode()) == Target("/chat/completions", "ro_1", "at_1", "Autor ä/b")
    assert parse_path(b"/r/ro_1/a/at_1/v1/models") == Target("/models", "ro_1", "at_1", "")
    assert parse_path(b"/v1/models") == Target("/models")
    assert parse_path(b"/metrics") is None


def test_headers_are_percent_encoded_utf8() -> None:
    headers = [
        (b"x-agl-rollout", b"r"),
        (b"x-agl-attempt", b"a"),
        (b"x-agl-agent", b"%E4%BD%A0%20x"),
        (b"x-agl-agent-run", b"run"),
        (b"x-agl-call", b"c"),
        (b"x-agl-trainable", b"0"),
    ]
    identity = identify(Target("/"), headers)
    assert identity.agent == "你 x"
    assert (identity.agent_run_id, identity.call_id) == ("run", "c")
    assert not identity.trainable
    with pytest.raises(Problem, match="UTF-8"):
        identify(Target("/"), [(b"x-agl-agent", b"%ff")])


async def test_no_identity_is_400_and_names_the_fix(world: Any) -> None:
    key = {"Authorization": f"Bearer {world.gateway.client_key}"}
    async with world.post(key) as answer:
        error = (await answer.json())["error"]
    assert answer.status == 400
    assert error["code"] == "identity_missing"
    assert "x-agl-rollout" in error["message"]
    assert world.server.log == []


async def test_url_and_headers_must_agree(world: Any) -> None:
    attempt = await world.attempt()
    path = f"/r/{attempt.rollout_id}/a/{attempt.id}/agent/writer/v1/chat/completions"
    async with world.post(world.headers(attempt, "planner"), path=path) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == "identity_conflict"
    async with world.post(world.headers(attempt, "writer"), path=path) as answer:
        assert answer.status == 200


async def test_url_identity_alone_gets_a_call_id(world: Any) -> None:
    attempt = await world.attempt()
    path = f"/r/{attempt.rollout_id}/a/{attempt.id}/agent/{quote('schön')}/v1/chat/completions"
    key = world.key(attempt)
    async with world.post(key, path=path) as answer:
        assert answer.status == 200
    (call,) = await world.calls(attempt)
    assert call.agent == "schön"
    assert call.id == answer.headers["x-agl-call"]


@pytest.mark.parametrize("call_id", ["€", "c\r\nset-cookie: a=b", "\ud83d", "call_1"])
async def test_any_call_id_comes_back_percent_encoded(world: Any, call_id: str) -> None:
    attempt = await world.attempt()
    async with world.post(world.headers(attempt, call=call_id)) as answer:
        assert answer.status == 200
        assert answer.headers["x-agl-call"] == quote(call_id, safe="", errors="surrogatepass")
        assert "set-cookie" not in answer.headers
    (call,) = await world.calls(attempt)
    assert call.id == call_id


class Reply(Backend):
    """An answer of a backend in this process, whose headers no parser has seen."""

    status = 200
    headers: ClassVar[dict[str, str]] = {
        "X-Sign": "€ \udcff",
        "X-Lines": "a\r\nset-cookie: b\nx: c",
    }

    async def chat(self, body: bytes, **options: Any) -> Reply:
        return self

    async def body(self) -> Any:
        yield b'{"choices": []}'

    async def close(self) -> None: ...


async def test_a_backends_headers_travel_as_the_bytes_they_were(world: Any) -> None:
    await world.gateway.route(Policy(name="frozen"), Reply())
    attempt = await world.attempt()
    async with world.post(world.headers(attempt, "judge")) as answer:
        assert answer.status == 200
        raw = dict(answer.raw_headers)
    assert raw[b"x-sign"] == "€ ".encode() + b"\xff"
    assert raw[b"x-lines"] == b"a  set-cookie: b x: c"
    assert b"set-cookie" not in raw


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Bearer ", "Basic x"])
async def test_wrong_key_is_401(world: Any, key: str) -> None:
    attempt = await world.attempt()
    headers = {**world.headers(attempt), "Authorization": key}
    async with world.post(headers) as answer:
        assert answer.status == 401
    assert world.server.log == []


async def test_unknown_and_sealed_attempts_are_refused_and_counted(world: Any) -> None:
    attempt, other = await world.attempt(), await world.attempt()
    await world.gateway.seal(attempt.id)
    async with world.post(world.headers(attempt)) as answer:
        assert answer.status == 410
        assert answer.headers["x-should-retry"] == "false"
    key = world.gateway.attempt_key("ro_x", other.id)
    stranger = {**world.headers(other, rollout="ro_x"), "Authorization": f"Bearer {key}"}
    async with world.post(stranger) as answer:
        assert answer.status == 409
        assert (await answer.json())["error"]["code"] == "attempt_unknown"
    assert world.gateway.losses.counts["late_calls"] == 2
    with pytest.raises(StaleAttemptError, match="sealed"):
        await world.gateway.open(
            Rollout(id=attempt.rollout_id, task=Task(id="t"), run_id="run"), attempt
        )


async def test_health_models_and_unknown_paths(world: Any) -> None:
    key = {"Authorization": f"Bearer {world.gateway.client_key}"}
    async with world.session.get(world.gateway.url + "/health") as answer:
        assert answer.status == 200
        assert await answer.json(content_type=None) == {"status": "ok", "in_flight": 0}
    async with world.session.get(world.gateway.url + "/v1/models", headers=key) as answer:
        rows = (await answer.json())["data"]
        assert [row["id"] for row in rows] == ["trained", "frozen"]
    async with world.session.get(world.gateway.url + "/v1/files", headers=key) as answer:
        assert answer.status == 404
        assert "chat/completions" in (await answer.json())["error"]["message"]


async def test_a_taken_port_is_a_config_error(world: Any) -> None:
    from agl_core.gateway._app import GatewayOptions, GatewayServer

    port = int(world.gateway.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=str(port)):
        await GatewayServer(world.store, GatewayOptions(port=port)).start()


def test_a_gateway_without_any_policy_does_not_blame_the_agent() -> None:
    with pytest.raises(Problem, match="no trainer") as refused:
        find(router(), "writer", "m")
    assert (refused.value.status, refused.value.retry) == (503, True)


async def test_an_alias_routes_and_is_recorded(world: Any) -> None:
    """G15: policies go by the alias; the record has both names, the backend neither."""
    attempt = await world.attempt()
    for seat, alias in (("seat 1", "writer"), ("writer", "seat 1"), ("planner", "")):
        async with world.post(world.headers(attempt, seat, alias=alias)) as answer:
            assert answer.status == 200
    calls = await world.calls(attempt)
    assert {(call.agent, call.alias, call.policy) for call in calls} == {
        ("seat 1", "writer", "trained"),
        ("writer", "seat 1", "frozen"),
        ("planner", "", "trained"),
    }
    assert not [name for call in world.server.log for name in call.headers if "agl" in name]


@pytest.mark.parametrize(("first", "then"), [("wolf", "villager"), ("", "wolf"), ("wolf", "")])
async def test_an_agent_keeps_the_alias_of_its_first_call(
    world: Any, first: str, then: str
) -> None:
    """G15: one agent of one attempt is never two."""
    attempt, other = await world.attempt(), await world.attempt()
    for each, alias, status in ((attempt, first, 200), (attempt, then, 409), (other, then, 200)):
        async with world.post(world.headers(each, "seat", alias=alias)) as answer:
            assert answer.status == status, await answer.text()
    calls = await world.calls(attempt)
    assert sorted(call.status_code for call in calls) == [200, 409]
    (error,) = [call.error for call in calls if call.error]
    assert f"'seat' calls with x-agl-alias {then!r}" in error


async def test_requests_of_no_attempt_are_counted_by_cause(world: Any) -> None:
    """C3, C9: refused requests that bear a key of the run."""
    attempt, other = await world.attempt(), await world.attempt()
    run = {"Authorization": f"Bearer {world.gateway.client_key}"}
    async with world.post(run) as answer:
        message = (await answer.json())["error"]["message"]
    assert "copy_context" in message
    async with world.post(run, path="/v1/messages") as answer:
        assert answer.status == 400
    path = f"/r/{other.rollout_id}/a/{other.id}/v1/chat/completions"
    async with world.post(world.headers(attempt), path=path) as answer:
        assert answer.status == 400
    async with world.post(run, path="/r/x/a/y/agent/%ff/v1/chat/completions") as answer:
        assert answer.status == 400
    async with world.post(world.headers(attempt) | run) as answer:
        assert answer.status == 403
    assert (await world.gateway.lost()).counts == {
        "calls_without_identity": 2,
        "calls_with_conflicting_identity": 2,
        "calls_with_wrong_key": 1,
    }


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/completions", "/chat/completions"])
async def test_a_dialect_that_is_not_served_is_on_record(world: Any, path: str) -> None:
    """C4: the client's span of the request finds its counterpart."""
    attempt = await world.attempt()
    async with world.post(world.headers(attempt, call="call_1"), path=path) as answer:
        assert answer.status == 404
    (call,) = await world.calls(attempt)
    assert (call.id, call.status_code) == ("call_1", 404)
