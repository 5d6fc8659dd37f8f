"""What rewards may read before an attempt is sealed."""

import asyncio
from typing import Any

from agl_core import waits
from agl_core.interfaces import agent_calls

from .test_liveness import Hold


async def test_flushing_writes_records_and_leaves_the_attempt_open(world: Any) -> None:
    """G14: what has ended is in the store at once, not after the seconds for late retries."""
    attempt = await world.attempt()
    await world.ask(attempt, "judge")

    await world.gateway.flush(attempt.id)

    spans = await world.store.spans([attempt.rollout_id])
    assert [call.answer for call in agent_calls(spans)] == [
        world.server.log[0].choices[0].text,
    ]
    await world.ask(attempt, "judge")
    assert await world.gateway.seal(attempt.id) == 2
    await world.gateway.flush(attempt.id)


async def test_flushing_does_not_wait_for_a_call_that_goes_on(world: Any, monkeypatch: Any) -> None:
    """G14: an agent that returned with a call under way does not hold its rewards."""
    monkeypatch.setattr(waits, "RETURNED_CALLS_S", 0.0)
    attempt = await world.attempt()
    hold = Hold(world)
    asking = asyncio.create_task(world.ask(attempt, "judge"))
    await hold.reached.wait()

    await world.gateway.flush(attempt.id)

    assert await world.store.spans([attempt.rollout_id]) == []
    hold.go.set()
    await asking
    await world.gateway.flush(attempt.id)
    assert len(await world.store.spans([attempt.rollout_id])) == 1
