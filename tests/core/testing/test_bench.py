"""What the bench promises to those whose programs fail on it."""

import httpx

from agl_core.testing.bench import Bench
from agl_core.tracing import attach


async def test_a_rollout_that_fails_is_not_waited_for():
    async def program(job):
        if job.key == "0":
            raise ValueError("out of order")
        request = {"model": "writer", "messages": [{"role": "user", "content": job.question}]}
        async with httpx.AsyncClient(base_url=job.base_url, timeout=30) as client:
            answer = await client.post(
                "/chat/completions",
                json=request,
                headers={"Authorization": f"Bearer {job.api_key}"},
            )
        return answer.status_code

    attachment = attach(integrations=[])
    async with Bench.open() as bench:
        bench.interleave(2)
        failed, played = await bench.play(program, rollouts=2)
    attachment.detach()
    assert str(failed.error) == "out of order"
    assert (played.error, played.output) == (None, 200)
