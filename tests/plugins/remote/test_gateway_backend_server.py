"""What a backend's server answers, and what it does when its process ends."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
from agl_remote._gateway_client import BackendServer


class Awkward:
    """A backend and its answer at once, with headers that no parser has seen."""

    status = 200

    def __init__(self):
        self.headers = {"X-Sign": "€ \udcff", "X-Lines": "a\r\nset-cookie: b", "X-Agl-Call": "c"}
        self.sent = {}

    async def chat(self, body, *, headers, timeout_s):
        self.sent = headers
        return self

    async def body(self):
        yield b"{}"

    async def close(self):
        """Nothing is open."""


async def test_headers_travel_as_the_gateway_would_send_them():
    backend, server = Awkward(), BackendServer()
    await server.start()
    url = server.serve("writer", backend) + "/chat/completions"
    key = {"authorization": f"Bearer {server.key}"}
    headers = {**key, "x-trace": "1"}
    async with aiohttp.request("POST", url, json={}, headers=headers) as reply:
        assert (reply.status, await reply.read()) == (200, b"{}")
        raw = dict(reply.raw_headers)
    await server.stop()
    assert raw[b"x-sign"] == "€ ".encode() + b"\xff"
    assert raw[b"x-lines"] == b"a  set-cookie: b"
    assert raw[b"content-type"] == b"application/json"
    assert raw.keys().isdisjoint((b"set-cookie", b"x-agl-call"))
    assert backend.sent["x-trace"] == "1"
    assert backend.sent.keys().isdisjoint(("authorization", "host"))


class Endless:
    """A backend that takes every call and answers none."""

    def __init__(self):
        self.asked = asyncio.Event()

    async def chat(self, body, *, headers, timeout_s):
        self.asked.set()
        await asyncio.Event().wait()


async def test_calls_under_way_are_told_of_the_end_and_nothing_is_logged(caplog):
    backend, server = Endless(), BackendServer()
    await server.start()
    url = server.serve("writer", backend) + "/chat/completions"
    key = {"authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(headers=key) as session:

        async def ask():
            async with session.post(url, json={}) as reply:
                return reply.status, json.loads(await reply.read())["error"]["code"]

        asking = asyncio.create_task(ask())
        await backend.asked.wait()
        with caplog.at_level(logging.WARNING):
            await server.stop()
        assert await asking == (503, "engine_error")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
