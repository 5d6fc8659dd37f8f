"""Waking of waiting callers by a change stream, where the server has one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from agl_stores import unkey
from pymongo.asynchronous.change_stream import AsyncCollectionChangeStream
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from agl_core.store import Changes
from agl_core.types import RolloutStatus
from agl_mongodb._connect import Document
from agl_mongodb._errors import MongoAddress

_log = logging.getLogger(__name__)
_PAUSE_S: Final = 1.0
EVERY: Final = 1_000_000
"""More than any number of waiting workers."""
_FIELD: Final = "updateDescription.updatedFields.status"
_PIPELINE: Final[list[dict[str, Any]]] = [
    {"$match": {"$or": [{"operationType": "insert"}, {_FIELD: {"$exists": True}}]}},
    {"$project": {"documentKey": 1, "fullDocument.status": 1, _FIELD: 1}},
]

_Stream = AsyncCollectionChangeStream[Document]


class StatusWatch:
    """Announces the rollouts whose status changed, also by other processes."""

    def __init__(
        self,
        rollouts: AsyncCollection[Document],
        *,
        announce: Callable[[Changes], None],
        shown: MongoAddress,
    ) -> None:
        self._rollouts = rollouts
        self._announce = announce
        self._shown = shown
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Begin; return False if the server has no change streams."""
        try:
            stream = await self._rollouts.watch(_PIPELINE)
        except OperationFailure as error:
            _log.info(
                "%s has no change streams (%s), so it is polled",
                self._shown.address,
                self._shown.clean(error),
            )
            return False
        self._task = asyncio.create_task(self._run(stream), name="agl-store-watch")
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self, stream: _Stream) -> None:
        while True:
            try:
                async with stream:
                    async for change in stream:
                        self._receive(change)
            except PyMongoError as error:
                _log.warning(
                    "No changes from %s, trying again: %s",
                    self._shown.address,
                    self._shown.clean(error),
                )
            stream = await self._again()
            self._announce(Changes(queued=EVERY))

    async def _again(self) -> _Stream:
        while True:
            await asyncio.sleep(_PAUSE_S)
            with suppress(PyMongoError):
                return await self._rollouts.watch(_PIPELINE)

    def _receive(self, change: Any) -> None:
        updated = change.get("updateDescription", {}).get("updatedFields", {})
        status = updated.get("status") or change.get("fullDocument", {}).get("status")
        if status == RolloutStatus.QUEUED:
            self._announce(Changes(queued=1))
        elif status in tuple(RolloutStatus) and RolloutStatus(status).final:
            self._announce(Changes(final=[unkey(change["documentKey"]["_id"])]))
