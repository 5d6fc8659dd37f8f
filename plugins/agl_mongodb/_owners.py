"""Which processes have a store open, so that the first one can queue again what a crash left."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError, PyMongoError

from agl_core.clocks import monotonic, new_id
from agl_mongodb._connect import Document

_log = logging.getLogger(__name__)
_OPENING: Final = "opening"
_BEATS: Final = 20
"""Signs of life within the time after which a process counts as crashed."""
_ALIVE: Final = 2
"""Signs of life that show that a process runs: one may have been under way when it ended."""
_PAUSE_S: Final = 0.05


class Owners:
    """The processes that have a store open: a document each, with a number that they count up.

    A process is alive if its number changes while another one looks; clocks are not compared. One
    process at a time opens the store, and only while no other one is alive may it end attempts.
    """

    def __init__(self, owners: AsyncCollection[Document], *, dead_after_s: float) -> None:
        self._owners = owners
        self._dead_after_s = dead_after_s
        self._id = new_id("st")
        self._beating: asyncio.Task[None] | None = None

    async def enter(self) -> bool:
        """Take the turn to open the store; return True if no other process has it open.

        `share` must follow.
        """
        await self._take_turn()
        self._beating = asyncio.create_task(self._beat(), name="agl-store-owner")
        alone = await self._alone()
        await self._owners.insert_one({"_id": self._id, "beat": 0})
        return alone

    async def share(self) -> None:
        """End the turn: other processes may open the store."""
        await self._owners.delete_one({"_id": _OPENING, "by": self._id})

    async def leave(self) -> None:
        """Show that this process has closed the store."""
        if self._beating is None:
            return
        self._beating.cancel()
        with suppress(asyncio.CancelledError):
            await self._beating
        self._beating = None
        with suppress(PyMongoError):  # without the server, others notice it by the silence
            await self.share()
            await self._owners.delete_one({"_id": self._id})

    async def _take_turn(self) -> None:
        seen: Document | None = None
        since = monotonic()
        while True:
            try:
                await self._owners.insert_one({"_id": _OPENING, "by": self._id, "beat": 0})
            except DuplicateKeyError:
                found = await self._owners.find_one({"_id": _OPENING})
            else:
                return
            if found != seen:
                seen, since = found, monotonic()
            elif found is not None and monotonic() - since > self._dead_after_s:
                await self._owners.delete_one(found)
            await asyncio.sleep(_PAUSE_S)

    async def _others(self) -> dict[str, int]:
        found = self._owners.find({"_id": {"$nin": [_OPENING, self._id]}})
        return {each["_id"]: each["beat"] async for each in found}

    async def _alone(self) -> bool:
        """Return whether no other process gives a sign of life; remove those that crashed."""
        first = await self._others()
        silent, end = first, monotonic() + self._dead_after_s
        while silent and monotonic() < end:
            await asyncio.sleep(_PAUSE_S)
            silent = await self._others()
            if any(beat - first.get(one, beat) >= _ALIVE for one, beat in silent.items()):
                return False
        for one in silent:
            await self._owners.delete_one({"_id": one})
        return True

    async def _beat(self) -> None:
        """Count up until cancelled."""
        while True:
            await asyncio.sleep(self._dead_after_s / _BEATS)
            try:
                mine = {"$or": [{"_id": self._id}, {"_id": _OPENING, "by": self._id}]}
                await self._owners.update_many(mine, {"$inc": {"beat": 1}})
            except PyMongoError as error:
                _log.debug("No sign of life could be written: %s", error)
