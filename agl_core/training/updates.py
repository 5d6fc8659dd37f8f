"""From batches to new versions that serve."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from agl_core.interfaces import Engine, Gateway
from agl_core.types import Batch, Update

Serve = Callable[[str, int], Awaitable[None]]
"""Sends a policy's calls to the engine as the given version."""


class Updates:
    """Takes a step's updates so that every call is answered by one version from end to end.

    New weights serve from a moment on at which no call is in flight: new calls wait until then. An
    engine that trains while it serves needs only that moment, any other the whole update.
    """

    def __init__(self, engine: Engine, gateway: Gateway, *, drain_timeout_s: float) -> None:
        """Say who trains and who serves.

        Args:
            engine: Trains.
            gateway: Holds calls back.
            drain_timeout_s: Calls in flight that outlive it are aborted and retried.
        """
        self._engine = engine
        self._gateway = gateway
        self._drain_timeout_s = drain_timeout_s

    async def take(self, batches: Sequence[Batch], serve: Serve) -> list[Update]:
        """Train on the batches, in this order, and serve what comes of them."""
        engine = self._engine
        if engine.overlaps:
            updates = [await engine.train(batch) for batch in batches]
            async with self._no_calls():
                for update in updates:
                    await engine.publish(update.policy)
                    await serve(update.policy, update.version)
            return updates
        updates: list[Update] = []
        async with self._no_calls():
            for batch in batches:
                update = await engine.update(batch)
                await serve(update.policy, update.version)
                updates.append(update)
        return updates

    @asynccontextmanager
    async def _no_calls(self) -> AsyncGenerator[None]:
        await self._gateway.pause()
        try:
            await self._gateway.drain(timeout_s=self._drain_timeout_s)
            yield
        finally:
            await self._gateway.resume()
