"""Iteration over all rollouts of a store, page by page, and over their attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from agl_core.interfaces import AttemptRecord, Store
from agl_core.types import Rollout, RolloutQuery, Span

PAGE = 500


async def rollout_pages(
    store: Store, query: RolloutQuery | None = None, *, size: int = PAGE
) -> AsyncGenerator[list[Rollout], None]:
    """Yield every rollout that matches the query, by ascending id; ignore the query's limit.

    A rollout that is added during the iteration is included if its id is greater than those already
    yielded.
    """
    query = replace(query or RolloutQuery(), limit=size)
    while True:
        page = await store.rollouts(query)
        if page:
            yield page
        if len(page) < size:
            return
        query = replace(query, after_id=page[-1].id)


async def attempt_records(
    store: Store, rollouts: Sequence[Rollout]
) -> AsyncGenerator[AttemptRecord, None]:
    """Yield every attempt of a page of rollouts with its spans, including running attempts."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in await store.spans([rollout.id for rollout in rollouts]):
        spans[span.attempt_id].append(span)
    for rollout in rollouts:
        for attempt in rollout.attempts:
            yield AttemptRecord(rollout=rollout, attempt=attempt, spans=spans[attempt.id])
