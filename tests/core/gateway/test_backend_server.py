"""What a backend's server answers when its process ends."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp

from agl_core.gateway.backend_server import BackendServer


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
