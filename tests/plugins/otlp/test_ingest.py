"""Agents in any language send their spans over OTLP; each is stored or refused with a reason."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading

import pytest
from agl_otlp import _ingest as ingest

from agl_core.errors import StoreError
from agl_core.types import Reward
from tests.core.gateway.conftest import OPERATOR
from tests.plugins.otlp.test_codec import body, otel
from tests.plugins.otlp.test_protobuf import FROM_AN_SDK

JSON = {"Content-Type": "application/json"}


async def export(world, payload, attempt=None, *, path="/v1/traces", raw=False, **headers):
    """Status and answer of one export request."""
    own = world.headers(attempt, agent="") if attempt is not None else {}
    given = {**OPERATOR, **own, **JSON, **headers}
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    async with world.session.post(world.gateway.url + path, data=data, headers=given) as reply:
        return reply.status, await reply.read() if raw else await reply.json()


async def stored(world, attempt):
    return await world.store.spans([attempt.rollout_id])


async def test_spans_of_an_attempt_named_by_headers_are_stored(world):
    attempt = await world.attempt()

    status, told = await export(world, body(otel(name="fetch")), attempt)

    assert (status, told) == (200, {})
    (span,) = await stored(world, attempt)
    assert (span.name, span.kind, span.attempt_id) == ("fetch", "operation", attempt.id)


async def test_the_address_may_name_attempt_and_agent(world):
    attempt = await world.attempt()
    path = f"/r/{attempt.rollout_id}/a/{attempt.id}/agent/w%20r/v1/traces"

    status, told = await export(world, body(otel(agl__reward__value=1.0)), path=path)

    assert (status, told) == (200, {})
    (span,) = await stored(world, attempt)
    assert (span.agent, span.reward) == ("w r", Reward(value=1.0))


async def test_a_reason_that_is_too_long_is_cut_and_counted(world):
    attempt = await world.attempt()
    row = otel(agl__reward__value=1.0, agl__reward__why="x" * 16_385)

    assert await export(world, body(row), attempt) == (200, {})

    (span,) = await stored(world, attempt)
    assert span.reward == Reward(value=1.0, why="x" * 16_384 + "... [1 more characters]")
    assert world.gateway.losses.counts == {"truncated_value": 1}


async def test_one_collector_may_send_for_many_attempts(world):
    one, two = await world.attempt(), await world.attempt()
    rows = [otel(n, agl__rollout=a.rollout_id, agl__attempt=a.id) for n, a in ((1, one), (2, two))]

    status, told = await export(world, body(*rows))

    assert (status, told) == (200, {})
    assert [len(await stored(world, attempt)) for attempt in (one, two)] == [1, 1]


async def test_a_request_that_is_repeated_is_stored_once(world):
    attempt = await world.attempt()

    for _ in range(2):
        assert (await export(world, body(otel(1), otel(2)), attempt))[1] == {}

    assert len(await stored(world, attempt)) == 2


async def test_protobuf_and_gzip_are_what_most_exporters_send(world):
    attempt = await world.attempt()
    packed = gzip.compress(FROM_AN_SDK)
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}

    status, told = await export(world, packed, attempt, raw=True, **headers)
    again = await export(world, FROM_AN_SDK, raw=True, **{**headers, "Content-Encoding": ""})

    assert (status, told) == (200, b"")
    assert {span.kind for span in await stored(world, attempt)} == {"agent", "tool"}
    assert again[0] == 200
    assert b"\x08\x02" in again[1]
    assert b"names no rollout" in again[1]
    assert world.gateway.losses.counts == {"otlp_refused": 2}


@pytest.mark.parametrize("packed", [False, True])
async def test_other_requests_are_served_while_a_large_one_is_read(world, monkeypatch, packed):
    large, small = await world.attempt(), await world.attempt()
    reading, go_on = threading.Event(), threading.Event()

    def slow(request, *, sender):
        if sender.attempt_id == large.id:
            reading.set()
            assert go_on.wait(60)
        return decode(request, sender=sender)

    decode = ingest.decode
    monkeypatch.setattr(ingest, "decode", slow)
    payload = json.dumps(body(otel(text="x" * (100 if packed else 100_000)))).encode()
    if packed:
        sending = export(world, gzip.compress(payload), large, **{"Content-Encoding": "gzip"})
    else:
        sending = export(world, payload, large)
    first = asyncio.create_task(sending)
    await asyncio.to_thread(reading.wait, 60)
    assert await export(world, body(otel()), small) == (200, {})
    assert not first.done()
    go_on.set()
    assert await first == (200, {})
    assert len(await stored(world, large)) == 1


async def test_strangers_and_malformed_spans_are_counted_in_the_answer(world):
    attempt = await world.attempt()
    other = await world.attempt()
    rows = [
        otel(1),
        otel(2, agl__attempt="elsewhere"),
        {**otel(3), "spanId": "x"},
        otel(4, agl__rollout=attempt.rollout_id, agl__attempt=other.id),
    ]
    path = f"/r/{attempt.rollout_id}/a/{attempt.id}/v1/traces"

    status, told = await export(world, body(*rows), path=path)

    assert status == 200
    partial = told["partialSuccess"]
    assert partial["rejectedSpans"] == "3"
    assert "elsewhere" in partial["errorMessage"]
    assert "16 hex digits" in partial["errorMessage"]
    assert [span.id for span in await stored(world, attempt)] == ["otel_" + "0" * 15 + "1"]
    assert world.gateway.losses.counts == {"otlp_refused": 3}


async def test_spans_of_unknown_and_sealed_attempts_are_refused(world):
    attempt = await world.attempt()
    await world.gateway.seal(attempt.id)
    unknown = {"agl.rollout": "ro_x", "agl.attempt": "at_x"}

    sealed = await export(world, body(otel()), attempt)
    nobody = await export(world, body(otel(), resource=unknown))
    mixed = await export(world, body(otel(agl__rollout="ro_x", agl__attempt=attempt.id)))

    assert "has ended" in sealed[1]["partialSuccess"]["errorMessage"]
    assert "No attempt 'at_x'" in nobody[1]["partialSuccess"]["errorMessage"]
    assert mixed[1]["partialSuccess"]["rejectedSpans"] == "1"
    assert await stored(world, attempt) == []


async def test_spans_that_come_while_their_attempt_ends_are_counted(world):
    attempt = await world.attempt()
    await world.store.cancel([attempt.rollout_id], reason="test")

    _, told = await export(world, body(otel(1), otel(2)), attempt)

    assert told["partialSuccess"]["rejectedSpans"] == "2"
    assert "ended before" in told["partialSuccess"]["errorMessage"]


async def test_many_reasons_are_told_in_few_words(world):
    rows = [otel(n + 1, agl__rollout=f"r{n}", agl__attempt="a") for n in range(9)]

    _, told = await export(world, body(*rows))

    assert told["partialSuccess"]["rejectedSpans"] == "9"
    assert told["partialSuccess"]["errorMessage"].endswith("; ...")


@pytest.mark.parametrize(
    ("payload", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"\xff", {"Content-Type": "application/x-protobuf"}, 400),
        (b"[" * 100_000, {}, 400),
        (b"x", {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"{}")[:-9], {"Content-Encoding": "gzip"}, 400),
        (b"{}", {"Content-Encoding": "br"}, 415),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"{}", {"x-agl-rollout": "only"}, 400),
        (b"{}", {"Authorization": "Bearer wrong"}, 401),
    ],
    ids=range(10),
)
async def test_what_cannot_be_read_is_refused_as_a_whole(world, payload, headers, status):
    assert (await export(world, payload, **headers))[0] == status


async def test_a_bomb_and_a_flood_are_refused(world, monkeypatch):
    monkeypatch.setattr(ingest, "_LARGEST", 1000)
    bomb = gzip.compress(b" " * 100_000)

    assert (await export(world, bomb, **{"Content-Encoding": "gzip"}))[0] == 413
    assert (await export(world, b" " * 2000))[0] == 413


async def test_an_exporter_is_asked_to_repeat_what_the_store_did_not_take(world, monkeypatch):
    attempt = await world.attempt()

    async def fail(spans):
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "add_spans", fail)
        status, told = await export(world, body(otel()), attempt)
    assert status == 503
    assert "disk full" in told["error"]["message"]
    assert (await export(world, body(otel()), attempt)) == (200, {})
