"""Walk through all rollouts of a store, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec.structs import replace

from agl_core.interfaces import Store
from agl_core.types import Rollout, RolloutQuery

PAGE = 500


async def rollout_pages(
    store: Store, query: RolloutQuery | None = None, *, size: int = PAGE
) -> AsyncGenerator[list[Rollout], None]:
    """Every rollout that the query means, by ascending id; its own limit does not count.

    What is added while the walk goes on is seen if its id is greater than those already given.
    """
    query = replace(query or RolloutQuery(), limit=size)
    while True:
        page = await store.rollouts(query)
        if page:
            yield page
        if len(page) < size:
            return
        query = replace(query, after_id=page[-1].id)
