"""The engine's thread: jobs that wait, and how they end."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")

from agl_torch.serving.worker import Worker

from agl_core.errors import EngineError


class BusyLane:
    """A lane whose answers never end, and that has nothing to do for them."""

    busy = resting = held = False
    version, trained_in = 0, None

    def fail(self, error, outbox):
        pass


async def test_a_job_given_up_does_not_take_the_others_with_it():
    worker = Worker()
    worker.lanes["p"] = BusyLane()
    worker.start()
    given_up, kept = (asyncio.create_task(worker.run(lambda: None, lane="p")) for _ in range(2))
    await worker.run(lambda: None)  # both are in the thread's hands
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await worker.stop()
    with pytest.raises(EngineError, match="stopped"):
        await asyncio.wait_for(kept, timeout=20)
