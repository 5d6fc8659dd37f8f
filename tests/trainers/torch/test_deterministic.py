"""With ``deterministic``, an answer's bits do not depend on what else is being generated."""

from __future__ import annotations

import asyncio
import random

import pytest


@pytest.fixture
def requests():
    """Requests of many lengths and kinds, each with its own seed."""
    rng = random.Random(0)
    return [
        {
            "content": "x" * rng.choice([1, 3, 40, 118, 122, 250]) + str(index % 7),
            "seed": index,
            "n": rng.choice([1, 1, 3]),
            "max_tokens": rng.choice([1, 6, 17]),
            "temperature": rng.choice([1.0, 0.7, 0.0]),
            "top_p": rng.choice([1.0, 0.9]),
            "stream": rng.random() < 0.3,
        }
        for index in range(24)
    ]


async def test_bits_do_not_depend_on_the_batch(serve, requests):
    client = await serve(deterministic=True, max_batch_size=40)
    alone = [(await client.ask(**request)).answers for request in requests]
    rng = random.Random(1)
    for size in (2, 5, 24, 24):
        chosen = rng.sample(range(len(requests)), size)
        replies = await asyncio.gather(*(client.ask(**requests[index]) for index in chosen))
        for index, reply in zip(chosen, replies, strict=True):
            assert reply.answers == alone[index]


async def test_bits_do_not_depend_on_what_came_before(serve, requests):
    first, second = (
        await serve(deterministic=True),
        await serve(deterministic=True, prefix_tokens=0),
    )
    for request in requests[:8]:
        await first.ask(**{**request, "seed": 99})
    for request in requests[:8]:
        assert (await first.ask(**request)).answers == (await second.ask(**request)).answers
