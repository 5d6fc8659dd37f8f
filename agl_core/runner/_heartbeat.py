"""Heartbeats, which extend the leases of attempts in flight and stop attempts without a lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from agl_core.errors import StoreError
from agl_core.interfaces import Store
from agl_core.tracing import Recorder
from agl_core.types import Claim

_log = logging.getLogger(__name__)

_BEATS_PER_LEASE: Final = 3


class Flight:
    """An attempt in flight."""

    __slots__ = ("claim", "ending", "recorder", "revoked", "task")

    def __init__(
        self,
        claim: Claim,
        recorder: Recorder,
        fly: Callable[[Flight], Coroutine[Any, Any, None]],
    ) -> None:
        """Start the task that runs `fly` on this flight."""
        self.claim = claim
        self.recorder = recorder
        self.revoked = False
        """Whether the store has reported that it is no longer running."""
        self.ending = False
        """Whether its outcome is being stored; only a second cancellation interrupts that."""
        self.task = asyncio.create_task(fly(self), name=f"agl-{claim.attempt.id}")

    def cancel(self) -> bool:
        """Stop it unless its outcome is being stored; return whether it stops."""
        return not self.ending and self.task.cancel()


class Heartbeats:
    """Sends one heartbeat for all flights, in an interval that suits their shortest lease."""

    def __init__(
        self,
        store: Store,
        flights: Mapping[str, Flight],
        *,
        interval_s: float | None,
        count: Callable[[str], None],
    ) -> None:
        """Set the flights; `run` sends heartbeats.

        Args:
            store: The store with the leases.
            flights: Flights by attempt id; read at each heartbeat.
            interval_s: Seconds between heartbeats; None: a third of the shortest lease.
            count: Called with every loss.
        """
        self._store = store
        self._flights = flights
        self._interval_s = interval_s
        self._count = count
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Compute the interval again, as a new flight may have a shorter lease."""
        self._changed.set()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            self._changed.clear()
            interval = self._interval()
            wait_s = None if interval is None else max(0.0, last + interval - loop.time())
            try:
                await asyncio.wait_for(self._changed.wait(), wait_s)
            except TimeoutError:
                last = loop.time()
                await self._beat()

    def _interval(self) -> float | None:
        leases = [flight.claim.rollout.limits.lease_s for flight in self._flights.values()]
        if not leases:
            return None
        return self._interval_s or min(leases) / _BEATS_PER_LEASE

    async def _beat(self) -> None:
        ids = [attempt_id for attempt_id, flight in self._flights.items() if not flight.ending]
        if not ids:
            return
        try:
            lost = await self._store.heartbeat(ids)
        except StoreError:
            # The lease allows two more heartbeats; if the store stays away, `finish` raises.
            _log.warning("The store took no heartbeat for %d attempts", len(ids), exc_info=True)
            self._count("failed_heartbeat")
            return
        for attempt_id in lost:
            flight = self._flights.get(attempt_id)
            if flight is not None and flight.cancel():
                flight.revoked = True
