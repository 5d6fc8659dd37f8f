"""Rules of the store contract: one trainer per store."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from agl_core.errors import LeadHeldError, StoreError
from agl_core.interfaces import StoreLifecycle
from agl_testing._guard import ContractSuite

Reopen = Callable[[StoreLifecycle], Awaitable[StoreLifecycle]]


class LeadRules(ContractSuite):
    """Rules on which trainer may use a store."""

    durable: ClassVar[bool]
    patience_s: ClassVar[float]

    async def test_a_second_trainer_is_refused_until_the_first_gives_back(
        self, store: StoreLifecycle
    ) -> None:
        await store.lead("first", lease_s=60.0)
        await store.lead("first", lease_s=600.0)
        with pytest.raises(LeadHeldError, match="first") as refused:
            await store.lead("second", lease_s=60.0)
        assert refused.value.holder == "first"
        assert refused.value.until > time.time() + 300
        await store.lead("second", lease_s=0)
        with pytest.raises(LeadHeldError):
            await store.lead("second", lease_s=60.0)
        await store.lead("first", lease_s=0)
        await store.lead("first", lease_s=0)
        await store.lead("second", lease_s=60.0)
        with pytest.raises(LeadHeldError, match="second"):
            await store.lead("first", lease_s=60.0)

    async def test_a_lead_that_lapsed_can_be_taken(self, store: StoreLifecycle) -> None:
        await store.lead("first", lease_s=0.02)
        await asyncio.wait_for(_taken(store, "second"), self.patience_s)
        with pytest.raises(LeadHeldError, match="second"):
            await store.lead("first", lease_s=60.0)

    async def test_a_leader_needs_a_name_and_an_end(self, store: StoreLifecycle) -> None:
        for instance, lease_s in (("", 1.0), ("a", -1.0), ("a", math.nan), ("a", math.inf)):
            with pytest.raises(StoreError, match="lease_s"):
                await store.lead(instance, lease_s=lease_s)
        await store.lead("other", lease_s=60.0)

    async def test_restart_keeps_the_lead_as_long_as_the_records(
        self, store: StoreLifecycle, reopen: Reopen
    ) -> None:
        await store.lead("first", lease_s=600.0)
        again = await reopen(store)
        if self.durable:
            with pytest.raises(LeadHeldError, match="first"):
                await again.lead("second", lease_s=60.0)
            await again.lead("first", lease_s=60.0)
        else:
            await again.lead("second", lease_s=60.0)


async def _taken(store: StoreLifecycle, instance: str) -> None:
    while True:
        try:
            await store.lead(instance, lease_s=60.0)
        except LeadHeldError:
            await asyncio.sleep(0.01)
        else:
            return
