"""The lifecycle of rollouts in the SQLite store, with the events of a run and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import spans
from agl_events import BusOptions, Message
from agl_events._observer import EventsObserver, Publisher
from agl_events._options import EventsOptions
from store_ours import opened, rollout, spans_of
from worker import serve

from agl_core.clocks import new_id
from agl_core.config import RunConfig
from agl_core.interfaces import AttemptRecord, TrackedRun
from agl_core.types import AttemptStatus, Claim, Span


class NearBus:
    """Confirms at once, so that the outbox is written, read and emptied."""

    def __init__(self, url: str, options: BusOptions) -> None:
        self.taken = 0

    async def open(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> list[str]:
        self.taken += len(messages)
        return ["delivered"] * len(messages)

    async def close(self) -> None: ...


async def lifecycle(
    rollouts: int, workers: int, directory: str, place: str, events: bool
) -> dict[str, float]:
    """Return the time of `rollouts` rollouts, from enqueueing to reading their spans back.

    Args:
        rollouts: Their number.
        workers: Rollouts at once.
        directory: Where the run's directory with the outbox is.
        place: Where the store is: a directory, or a database's address.
        events: Whether events are made.
    """
    left, tokens = iter(range(rollouts)), cycle(spans.tokens(10 * spans.ROLLOUT_SPANS))
    run = Path(directory) / new_id("run")
    bus = NearBus("", BusOptions())
    config, options = RunConfig(), EventsOptions(url="near://bus")
    publisher = Publisher(config, options, lambda: bus)  # type: ignore[arg-type, return-value]
    observer = EventsObserver(
        config, publisher, lambda: TrackedRun(name="bench", directory=run, config={})
    )

    async def work(store: Any, following: Any) -> None:
        for _ in left:
            await store.enqueue([rollout()])
            (claim,) = await store.claim("bench")
            written = spans_of(claim, tokens)
            await store.add_spans(written)
            await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
            (ended,) = await store.wait([claim.rollout.id], timeout_s=60.0)
            if following is not None:
                tell(following, claim, written)
            read = await store.spans([ended.id])
            assert len(read) == spans.ROLLOUT_SPANS

    async with opened(place) as store:
        begin = spans.Stopwatch()
        async with _following(observer) if events else nullcontext() as following:
            await asyncio.gather(*(work(store, following) for _ in range(workers)))
        taken = begin.read()
    assert not events or bus.taken >= 3 * rollouts, bus.taken
    assert observer.losses.counts == {}
    return taken


@asynccontextmanager
async def _following(observer: EventsObserver) -> AsyncGenerator[EventsObserver]:
    async with observer.following():
        yield observer
        await observer._close(60.0)


def tell(observer: EventsObserver, claim: Claim, written: Sequence[Span]) -> None:
    """Make the three events of a rollout."""
    observer.agl_rollout_started(claim.rollout, claim.attempt)
    observer.agl_rollout_finished(claim.rollout, claim.attempt, written)
    record = AttemptRecord(rollout=claim.rollout, attempt=claim.attempt, spans=list(written))
    observer.agl_trajectories_built(record, [])


if __name__ == "__main__":
    serve(lifecycle=lifecycle)
