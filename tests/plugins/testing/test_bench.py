"""What the bench promises to those whose programs fail on it."""

import asyncio

import httpx
import pytest
from agl_testing.bench import Bench

from agl_core.tracing import attach


def request(job):
    return {
        "url": f"{job.base_url}/chat/completions",
        "json": {"model": "writer", "messages": [{"role": "user", "content": job.question}]},
        "headers": {"Authorization": f"Bearer {job.api_key}"},
        "timeout": 600,
    }


@pytest.fixture
async def bench():
    attachment = attach(integrations=[])
    async with Bench.open() as bench:
        yield bench
    attachment.detach()


async def test_a_rollout_that_fails_is_not_waited_for(bench):
    async def program(job):
        if job.key == "0":
            raise ValueError("out of order")
        async with httpx.AsyncClient() as client:
            return (await client.post(**request(job))).status_code

    bench.interleave(2)
    failed, played = await bench.play(program, rollouts=2)
    assert str(failed.error) == "out of order"
    assert (played.error, played.output) == (None, 200)


async def test_a_rollout_that_ends_too_soon_is_not_waited_for(bench):
    async def program(job):
        async with httpx.AsyncClient() as client:
            calls = 1 if job.key == "0" else 2
            return [(await client.post(**request(job))).status_code for _ in range(calls)]

    bench.interleave(2)
    short, long = await bench.play(program, rollouts=2)
    assert (short.output, long.output) == ([200], [200, 200])


async def test_a_play_that_is_cancelled_ends_although_its_threads_wait_for_answers(bench):
    asked = asyncio.Event()

    async def before_send(answer, position):
        asked.set()
        await asyncio.Event().wait()

    bench.fake.before_send = before_send
    playing = asyncio.create_task(bench.one(lambda job: httpx.post(**request(job))))
    await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
