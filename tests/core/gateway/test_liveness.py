from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from agl_testing.fake_openai import FakeOptions

from agl_core import waits
from agl_core.errors import StoreError
from agl_core.gateway import GatewayOptions, RecordingOptions
from agl_core.types import Limits
from tests.core.passing import pass_time


class Hold:
    """Stops the backend before piece `at` of every answer until released."""

    def __init__(self, world: Any, at: int = 0) -> None:
        self.at = at
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        world.server.before_send = self

    async def __call__(self, answered: Any, position: int) -> None:
        if position == self.at:
            self.reached.set()
            await self.go.wait()


@pytest.mark.parametrize(
    ("stream", "at"), [(False, 0), (True, 0), (True, 4)], ids=["plain", "before", "middle"]
)
@pytest.mark.parametrize("agent", ["writer", "judge"])
async def test_backend_is_closed_when_the_client_leaves(
    world: Any, stream: bool, at: int, agent: str
) -> None:
    tasks = len(asyncio.all_tasks())
    attempt = await world.attempt()
    for round_ in range(3):
        hold = Hold(world, at)
        async with aiohttp.ClientSession() as session:
            world_session, world.session = world.session, session
            request = asyncio.ensure_future(
                world.post(world.headers(attempt, agent), stream=stream)._coro
            )
            await hold.reached.wait()
            if at:
                answer = await request
                await answer.content.readany()
                answer.close()
            else:
                request.cancel()
            world.session = world_session
        await world.server.ended(round_ + 1)
        await world.idle()
    assert all(answered.closed_early for answered in world.server.log)
    calls = await world.calls(attempt)
    assert [call.complete for call in calls] == [False] * 3
    assert {call.status_code for call in calls} == {200 if at else 499}
    assert all("client closed" in call.error for call in calls)
    assert world.gateway.losses.counts == {}
    assert len(asyncio.all_tasks()) <= tasks + 2


async def test_a_client_that_closes_before_done_has_it_all(world: Any) -> None:
    """OpenAI's clients stop reading early; what they were sent counts."""
    never = asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        if position == len(answered.choices[0].token_ids) + 1:
            await never.wait()

    world.server.before_send = before_send
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), stream=True) as answer:
        seen = b""
        while b'"finish_reason":"stop"' not in seen:
            seen += await answer.content.readany()
        answer.close()
    await world.idle()
    assert world.server.log[0].closed_early
    (call,) = await world.calls(attempt)
    assert call.complete
    assert call.error == ""
    assert call.choices[0].token_ids.tolist() == world.server.log[0].choices[0].token_ids
    assert world.gateway.losses.counts == {}


async def test_retries_supersede_earlier_tries(world: Any) -> None:
    attempt = await world.attempt()
    world.server.fail(2, status=503)
    statuses = []
    for _ in range(3):
        async with world.post(world.headers(attempt, call="call_1")) as answer:
            statuses.append(answer.status)
    assert statuses == [503, 503, 200]
    calls = await world.calls(attempt)
    assert [(c.tries, c.superseded, c.status_code) for c in calls] == [
        (1, True, 503),
        (2, True, 503),
        (3, False, 200),
    ]
    assert {call.id for call in calls} == {"call_1"}
    assert "out of order" in calls[0].error
    seeds = [answered.body["seed"] for answered in [*world.server.refused, *world.server.log]]
    assert len(set(seeds)) == 1


async def test_a_try_still_running_is_superseded_by_the_next(world: Any) -> None:
    attempt = await world.attempt()
    hold = Hold(world)
    headers = world.headers(attempt, call="call_1")

    async def ask() -> int:
        async with world.post(headers) as answer:
            await answer.read()
            return answer.status

    first = asyncio.create_task(ask())
    await hold.reached.wait()
    world.server.before_send = None
    assert await ask() == 200
    hold.go.set()
    assert await first == 200
    calls = sorted(await world.calls(attempt), key=lambda call: call.tries)
    assert [(call.tries, call.superseded) for call in calls] == [(1, True), (2, False)]
    assert calls[1].response_id == world.server.log[1].id


async def test_a_try_already_written_stays_with_a_lower_number_of_tries(world: Any) -> None:
    attempt = await world.attempt()
    headers = world.headers(attempt, call="call_1")
    async with world.post(headers) as answer:
        await answer.read()
    await world.stored(attempt)
    async with world.post(headers) as answer:
        await answer.read()
    calls = await world.calls(attempt)
    tries = sorted(calls, key=lambda call: call.tries)
    assert [call.tries for call in tries] == [1, 2]
    assert [call.response_id for call in tries] == [answered.id for answered in world.server.log]


async def test_sealing_ends_calls_and_writes_once(world: Any, monkeypatch: Any) -> None:
    attempt = await world.attempt()
    await world.ask(attempt, "judge")
    hold = Hold(world)

    async def ask() -> Any:
        async with world.post(world.headers(attempt)) as answer:
            return answer.status, await answer.json()

    asking = asyncio.create_task(ask())
    await hold.reached.wait()
    assert await world.gateway.seal(attempt.id) == 2
    status, body = await asking
    assert (status, body["error"]["code"]) == (410, "attempt_sealed")
    await world.server.ended(2)
    assert world.server.log[1].closed_early
    spans = await world.store.spans([attempt.rollout_id])
    assert [span.status for span in spans] == ["ok", "error"]
    assert await world.gateway.seal(attempt.id) == 2
    await world.idle()


async def test_a_client_that_reads_no_more_holds_nobody_up(world: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(waits, "LAST_ANSWER_S", 0.01)
    attempt = await world.attempt()
    full = asyncio.Event()
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    asked = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Any:
        if not asked:
            await asyncio.Event().wait()
        return asked.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            full.set()
            await asyncio.Event().wait()

    headers = {**world.headers(attempt), "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/v1/chat/completions",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    serving = asyncio.create_task(world.gateway._endpoints(scope, receive, send))
    await full.wait()
    (call,) = await world.calls(attempt)
    assert (call.complete, call.error) == (False, "cancelled: the attempt ended")
    await serving


async def test_deadline_ends_a_call(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = await world.attempt(limits=Limits(timeout_s=60))
    later = time.monotonic() + 60

    async def before_send(answered: Any, position: int) -> None:
        monkeypatch.setattr("agl_core.gateway._attempts.monotonic", lambda: later)
        pass_time(60)
        await asyncio.Event().wait()

    world.server.before_send = before_send
    async with world.post(world.headers(attempt)) as answer:
        assert answer.status == 504
        assert answer.headers["x-should-retry"] == "false"
    await world.idle()
    assert world.server.log[0].closed_early
    async with world.post(world.headers(attempt)) as answer:
        assert (await answer.json())["error"]["code"] == "deadline_exceeded"
    assert len(world.server.log) == 1
    calls = await world.calls(attempt)
    assert [call.status_code for call in calls] == [504, 504]


async def test_a_good_record_waits_for_a_late_retry(make_world: Any) -> None:
    options = RecordingOptions(interval_s=0.0, settle_s=60.0)
    world = await make_world(None, GatewayOptions(recording=options))
    attempt, other = await world.attempt(), await world.attempt()
    world.server.fail(1)
    for _ in range(3):
        async with world.post(world.headers(attempt, call="call_1")) as answer:
            await answer.read()
    # The superseded tries of the one are written while the record itself is still held.
    await world.ask(other)
    await world.stored(attempt)
    calls = await world.calls(attempt)
    assert [(call.tries, call.superseded) for call in calls] == [(1, True), (2, True), (3, False)]


async def test_paused_calls_wait_and_are_no_error(world: Any) -> None:
    attempt = await world.attempt()
    await world.gateway.pause()
    assert await world.gateway.drain(timeout_s=1) == 0
    asking = asyncio.create_task(world.ask(attempt))
    await world.until(lambda: world.gateway.in_flight)
    async with world.session.get(world.gateway.url + "/health") as answer:
        assert (await answer.json(content_type=None))["in_flight"] == 1
    assert not asking.done()
    assert world.server.log == []
    await world.route("trained", ("writer",), trainable=True, version=3)
    await world.gateway.resume()
    await asking
    (call,) = await world.calls(attempt)
    assert call.policy_version == 3
    assert world.gateway.losses.counts == {}


async def test_drain_waits_for_calls_inside(world: Any) -> None:
    attempt = await world.attempt()
    hold = Hold(world)
    asking = asyncio.create_task(world.ask(attempt))
    await hold.reached.wait()
    await world.gateway.pause()
    draining = asyncio.create_task(world.gateway.drain(timeout_s=30))
    await asyncio.sleep(0)
    assert not draining.done()
    hold.go.set()
    assert await draining == 0
    await asking
    await world.gateway.resume()


async def test_drain_restarts_calls_nobody_has_seen(world: Any) -> None:
    attempt = await world.attempt()
    hold = Hold(world)
    asking = [asyncio.create_task(world.ask(attempt, stream=s)) for s in (False, True)]
    await hold.reached.wait()
    await world.until(lambda: world.server.in_flight == 2)
    await world.gateway.pause()
    assert await world.gateway.drain(timeout_s=0) == 2
    await world.server.ended(2)
    assert all(answered.closed_early for answered in world.server.log)
    world.server.before_send = None
    await world.route("trained", ("writer",), trainable=True, version=2)
    await world.gateway.resume()
    await asyncio.gather(*asking)
    calls = await world.calls(attempt)
    assert [call.policy_version for call in calls] == [2, 2]
    assert [call.tries for call in calls] == [1, 1]
    answered = {a.id for a in world.server.log[2:]}
    assert {call.response_id for call in calls} == answered
    assert world.gateway.losses.counts == {"restarted_calls": 2}


async def test_drain_breaks_streams_that_have_begun(world: Any) -> None:
    attempt = await world.attempt()
    hold = Hold(world, 4)
    async with world.post(world.headers(attempt), stream=True) as answer:
        await hold.reached.wait()
        await world.gateway.pause()
        assert await world.gateway.drain(timeout_s=0) == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    await world.gateway.resume()
    (call,) = await world.calls(attempt)
    assert not call.complete
    assert "policy was updated" in call.error


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_backend_errors_are_relayed_and_recorded(world: Any, status: int) -> None:
    """A tool result without a call: the provider's refusal reaches the agent as it is."""
    error = {"error": {"message": "messages with role 'tool' must follow", "code": "bad_order"}}
    world.server.fail(1, status=status, body=error)
    attempt = await world.attempt()
    messages = [
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "so?"},
    ]
    async with world.post(world.headers(attempt), messages=messages, stream=True) as answer:
        assert answer.status == status
        assert await answer.json() == error
    (call,) = await world.calls(attempt)
    assert (call.status_code, call.complete) == (status, False)
    assert "bad_order: messages with role 'tool'" in call.error
    assert call.messages == messages
    (span,) = await world.store.spans([attempt.rollout_id])
    assert span.status == "error"


async def test_too_long_prompts_are_relayed(make_world: Any) -> None:
    world = await make_world(FakeOptions(max_model_len=10))
    attempt = await world.attempt()
    async with world.post(world.headers(attempt)) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == "context_length_exceeded"
    (call,) = await world.calls(attempt)
    assert "context_length_exceeded" in call.error


async def test_unreachable_backend_is_502(world: Any) -> None:
    from agl_endpoints import HttpBackend

    from agl_core.types import Policy

    backend = HttpBackend("http://127.0.0.1:1/v1")
    policy = Policy(name="trained", agents=("writer",), trainable=True)
    await world.gateway.route(policy, backend)
    attempt = await world.attempt()
    async with world.post(world.headers(attempt)) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (502, "engine_error")
        assert "base_url" in error["message"]
        assert answer.headers["x-should-retry"] == "true"
    (call,) = await world.calls(attempt)
    assert call.status_code == 502
    await backend.close()


async def test_stream_that_breaks_off_breaks_for_the_client_too(world: Any) -> None:
    attempt = await world.attempt()

    async def before_send(answered: Any, position: int) -> None:
        if position == 4:
            raise ConnectionResetError

    world.server.before_send = before_send
    async with world.post(world.headers(attempt), stream=True) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    (call,) = await world.calls(attempt)
    assert not call.complete
    assert call.error


@pytest.mark.parametrize("agent", ["writer", "critic"])
async def test_half_an_answer_that_the_backend_calls_whole_is_none(world: Any, agent: str) -> None:
    """Servers give up what they are writing when their weights change, with status 200."""

    def tamper(body: dict[str, Any]) -> None:
        for row in body["choices"]:
            row["finish_reason"] = row["finish_reason"] and "abort"

    world.server.tamper = tamper
    attempt = await world.attempt()
    async with world.post(world.headers(attempt, agent)) as answer:
        assert (answer.status, answer.headers["x-should-retry"]) == (502, "true")
        assert (await answer.json())["error"]["code"] == "engine_error"
    async with world.post(world.headers(attempt, agent), stream=True) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    world.server.tamper = None
    await world.ask(attempt, agent)
    *halves, whole = await world.calls(attempt)
    assert [(call.complete, "aborted its answer" in call.error) for call in halves] == [
        (False, True),
        (False, True),
    ]
    assert whole.complete


async def test_error_event_inside_a_stream_is_recorded(world: Any) -> None:
    world.server.cut = lambda data: [
        data[: data.index(b"\n\n") + 2],
        b'data: {"error": {"message": "engine died", "code": 500}}\n\n',
        b"data: [DONE]\n\n",
    ]
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), stream=True) as answer:
        assert b"engine died" in await answer.read()
    (call,) = await world.calls(attempt)
    assert call.error == "500: engine died"
    assert not call.complete


async def test_records_reach_the_store_before_sealing(world: Any) -> None:
    attempt = await world.attempt()
    await world.ask(attempt)
    await world.stored(attempt)
    assert await world.gateway.seal(attempt.id) == 1
    assert len(await world.store.spans([attempt.rollout_id])) == 1


async def test_a_full_buffer_holds_new_calls_until_the_store_writes(
    make_world: Any, monkeypatch: Any
) -> None:
    options = RecordingOptions(interval_s=0.0, settle_s=60.0, max_unwritten=1)
    world = await make_world(None, GatewayOptions(recording=options))
    attempt = await world.attempt()
    blocked, entered = asyncio.Event(), asyncio.Event()
    add_spans = world.store.add_spans

    async def slow(spans: Any) -> Any:
        entered.set()
        await blocked.wait()
        return await add_spans(spans)

    monkeypatch.setattr(world.store, "add_spans", slow)
    await world.ask(attempt)
    await entered.wait()
    second = asyncio.create_task(world.ask(attempt))
    await world.until(lambda: world.gateway.in_flight)
    assert len(world.server.log) == 1
    blocked.set()
    await second
    assert len(await world.calls(attempt)) == 2


async def test_a_failing_store_never_reaches_the_agent_and_loses_nothing(
    world: Any, monkeypatch: Any, caplog: Any
) -> None:
    attempt = await world.attempt()
    add_spans, failed, tries = world.store.add_spans, asyncio.Event(), []

    async def broken(spans: Any) -> Any:
        tries.append(spans)
        if len(tries) == 3:
            failed.set()
        raise StoreError("disk is full")

    monkeypatch.setattr(world.store, "add_spans", broken)
    await world.ask(attempt)
    await failed.wait()
    assert caplog.text.count("Could not write call records") == 1
    with pytest.raises(StoreError, match="full"):
        await world.gateway.seal(attempt.id)
    monkeypatch.setattr(world.store, "add_spans", add_spans)
    assert await world.gateway.seal(attempt.id) == 1
    assert len(await world.store.spans([attempt.rollout_id])) == 1


async def test_stopping_leaves_no_timer_of_an_attempt_that_was_never_sealed(world: Any) -> None:
    attempt = await world.attempt()
    timer = world.gateway._attempts.find(attempt.id)._timer
    await world.gateway.stop()
    assert timer.cancelled()


async def test_stopping_ends_calls_and_writes_the_rest(world: Any) -> None:
    attempt = await world.attempt()
    hold = Hold(world)

    async def ask() -> int:
        async with world.post(world.headers(attempt)) as answer:
            return answer.status

    asking = asyncio.create_task(ask())
    await hold.reached.wait()
    await world.gateway.stop()
    assert await asking == 503
    (span,) = await world.store.spans([attempt.rollout_id])
    assert "gateway stopped" in span.error
    await world.gateway.stop()


async def test_a_client_that_leaves_inside_its_request_is_recorded(world: Any) -> None:
    attempt = await world.attempt()
    host, port = world.gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    given = {**world.headers(attempt, call="call_1"), "Content-Length": "1000"}
    lines = [f"{name}: {value}" for name, value in given.items()]
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: x", *lines])
    writer.write(head.encode() + b"\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    recorded = world.gateway._attempts.find(attempt.id)
    await world.until(lambda: recorded.recorded)
    (call,) = await world.calls(attempt)
    assert (call.id, call.status_code, call.complete) == ("call_1", 499, False)


async def test_a_call_nobody_serves_is_recorded(world: Any) -> None:
    world.gateway._router._routes.pop("frozen")
    attempt = await world.attempt()
    async with world.post(world.headers(attempt, "judge", call="call_1")) as answer:
        assert answer.status == 404
    (call,) = await world.calls(attempt)
    assert (call.id, call.agent, call.status_code) == ("call_1", "judge", 404)
    assert "model_not_found" in call.error


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closed_its_side_is_answered(world: Any, stream: bool) -> None:
    """D4: a client that says that it will send no more gets its answer, and is recorded."""
    hold, attempt = Hold(world), await world.attempt()
    host, port = world.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
    given = {**world.headers(attempt), "Content-Length": str(len(body))}
    lines = [f"{name}: {value}" for name, value in given.items()]
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: x", *lines])
    writer.write(head.encode() + b"\r\n\r\n" + body)
    writer.write_eof()
    await hold.reached.wait()
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    hold.go.set()
    answer = await reader.read()
    assert b"200 OK" in answer
    assert b'"finish_reason"' in answer
    writer.close()
    await writer.wait_closed()
    (call,) = await world.calls(attempt)
    assert (call.complete, call.error) == (True, "")
