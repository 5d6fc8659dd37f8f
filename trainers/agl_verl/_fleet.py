"""One backend for all replicas of a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from agl_endpoints import HttpBackend

from agl_core.errors import AglError, EngineError
from agl_core.interfaces import Backend, BackendReply, Counted

_HEAD: Final = 2048
"""Number of leading bytes of a request that select its replica; they are the same for all
requests of a conversation."""
_SLACK: Final = 8
"""Number of running calls by which a replica may exceed the least busy one before calls move."""

Revive = Callable[[int], Awaitable[str | None]]
"""Replaces a replica, given by index, if it is dead, and returns the current address; returns None
if it is alive and was never replaced. Raises AglError if it is dead and cannot be replaced."""


def _url(address: str) -> str:
    return f"http://{address}/v1"


class ReplicaFleet(Backend):
    """Sends each conversation to one replica, for its prefix cache, unless that one is too busy."""

    def __init__(self, addresses: Sequence[str], model: str, revive: Revive) -> None:
        """Create backends for the replicas.

        Args:
            addresses: ``host:port`` of each replica.
            model: The replicas' model name, which requests must contain.
            revive: Called with the index of a replica that failed.
        """
        self.model = model
        self._backends = [HttpBackend(_url(each), model=model) for each in addresses]
        self._under_way = [0] * len(addresses)
        self._revive = revive

    async def chat(
        self, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> BackendReply:
        """Send one request body unchanged; if its replica is dead, replace it and retry once.

        Raises:
            EngineError: the replica failed, also after a replacement.
        """
        index = self._choose(body)
        asked = self._backends[index]
        try:
            return await self._send(index, body, headers, timeout_s)
        except EngineError as error:
            if not await self._renewed(index, asked, error):
                raise
            return await self._send(index, body, headers, timeout_s)

    async def count_tokens(self, body: bytes) -> Counted | None:
        """See `agl_core.interfaces.Backend`."""
        return await self._backends[self._choose(body)].count_tokens(body)

    async def detokenize(self, token_ids: Sequence[int]) -> str | None:
        """See `agl_core.interfaces.Backend`."""
        return await self._backends[0].detokenize(token_ids)

    async def context_length(self) -> int | None:
        """See `agl_core.interfaces.Backend`."""
        return await self._backends[0].context_length()

    async def close(self) -> None:
        for backend in self._backends:
            await backend.close()

    async def _send(
        self, index: int, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> BackendReply:
        self._under_way[index] += 1
        try:
            reply = await self._backends[index].chat(body, headers=headers, timeout_s=timeout_s)
        except BaseException:
            self._under_way[index] -= 1
            raise
        return _Counted(reply, self._under_way, index)

    async def _renewed(self, index: int, asked: HttpBackend, error: EngineError) -> bool:
        """Return whether the replica that failed has been replaced."""
        try:
            address = await self._revive(index)
        except AglError as failure:
            raise EngineError(f"Replica {index} of model {self.model!r}: {failure}") from error
        url = None if address is None else _url(address)
        if url is None or url == asked.base_url:
            return False
        old = self._backends[index]
        if url != old.base_url:
            self._backends[index] = HttpBackend(url, model=self.model)
            await old.close()
        return True

    def _choose(self, body: bytes) -> int:
        idlest = min(range(len(self._backends)), key=self._under_way.__getitem__)
        own = crc32(body[:_HEAD]) % len(self._backends)
        busy = self._under_way[own] - self._under_way[idlest] > _SLACK
        return idlest if busy else own


class _Counted:
    """A reply that counts as running until it is closed."""

    def __init__(self, reply: BackendReply, under_way: list[int], index: int) -> None:
        self._reply = reply
        self._under_way = under_way
        self._index: int | None = index
        self.status = reply.status
        self.headers = reply.headers

    def body(self) -> Any:
        return self._reply.body()

    async def close(self) -> None:
        if self._index is not None:
            self._under_way[self._index] -= 1
            self._index = None
        await self._reply.close()


class LaterFleet(Backend):
    """Replicas that the first call starts; other calls wait until they have started.

    A failed start is not retried, since each try takes minutes.
    """

    def __init__(self, start: Callable[[], Awaitable[ReplicaFleet]]) -> None:
        self._start = start
        self._starting: asyncio.Future[ReplicaFleet] | None = None

    async def chat(
        self, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> BackendReply:
        """See `ReplicaFleet.chat`.

        Raises:
            EngineError: the replicas could not be started.
        """
        fleet = await self._started()
        return await fleet.chat(body, headers=headers, timeout_s=timeout_s)

    async def count_tokens(self, body: bytes) -> Counted | None:
        """See `agl_core.interfaces.Backend`."""
        return await (await self._started()).count_tokens(body)

    async def detokenize(self, token_ids: Sequence[int]) -> str | None:
        """See `agl_core.interfaces.Backend`; None before the first call."""
        return None if self._fleet is None else await self._fleet.detokenize(token_ids)

    async def context_length(self) -> int | None:
        """See `agl_core.interfaces.Backend`; None before the first call."""
        return None if self._fleet is None else await self._fleet.context_length()

    async def close(self) -> None:
        if self._fleet is not None:
            await self._fleet.close()

    @property
    def _fleet(self) -> ReplicaFleet | None:
        done = self._starting
        ready = done is not None and done.done() and not done.cancelled() and not done.exception()
        return done.result() if done is not None and ready else None

    async def _started(self) -> ReplicaFleet:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            return await asyncio.shield(self._starting)
        except AglError as error:
            raise EngineError(
                f"The frozen policy's replica could not be started: {error}"
            ) from error
