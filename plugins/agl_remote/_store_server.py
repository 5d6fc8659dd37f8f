"""A server that gives other processes access to a store over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from agl_endpoints import SERVER_TLS

from agl_core.clocks import new_id
from agl_core.errors import ConfigError
from agl_core.serving import (
    GuestServer,
    address_of,
    bind,
    shared_key,
)
from agl_core.store import (
    SPANS,
    BaseStore,
    ClaimRequest,
    Prunable,
    Pruned,
    SqliteOptions,
    SqliteStore,
    encode,
)
from agl_core.types import Attempt, Claim, Ingest, Resources, Rollout, Span
from agl_remote import _store_calls as calls
from agl_remote._rpc import RpcApp, RpcMethod, RpcRequest

Q = TypeVar("Q")
A = TypeVar("A")

_REMEMBERED: Final = 4096
"""Number of recently undone claims to remember: a late request for one of them gets no rollouts."""


class StoreServer:
    """An HTTP server of a store, with `HttpStore` as its client; with TLS where `SERVER_TLS` is set.

    `claim` and `wait` keep their connection open until they have a result. If the caller of a claim
    disconnects, the rollouts are queued again. A repeated claim returns the same attempts.
    """

    def __init__(
        self, store: BaseStore, *, key: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """Configure the server.

        Args:
            store: A store that is not open; `start` opens it and `stop` closes it.
            key: Bearer token that callers must send.
            host: Address to listen on.
            port: Port to listen on; 0 chooses a free one.
        """
        self._store = store
        self._address = (host, port)
        self._tls = SERVER_TLS.get()
        self._handing_out: dict[str, asyncio.Task[object]] = {}
        self._handed_back: dict[str, None] = {}
        self._app = RpcApp(self._methods(), key=key, instance=new_id("life"))
        self.url = ""
        """Address, ``http://host:port``; empty before `start`."""

    async def start(self) -> None:
        """Open the store and serve it; when this returns, connections are accepted.

        Raises:
            ConfigError: the address is in use; the store was not opened.
            StoreError: the store cannot be opened.
        """
        listener = bind(*self._address)
        try:
            await self._store.open()
        except BaseException:
            listener.close()
            raise
        self.url = address_of(listener, tls=self._tls)
        self._server = GuestServer(self._app, tls=self._tls)
        await self._server.start(listener)

    async def stop(self) -> None:
        """Respond to every caller to retry later, release the port and close the store."""
        self._app.close()
        await self._server.stop()
        await self._store.close()

    def _methods(self) -> dict[str, RpcMethod]:
        store = self._store
        table = [
            _method(calls.HELLO, lambda _, __: _nothing()),
            _method(calls.ENQUEUE, lambda rollouts, _: store.enqueue(rollouts)),
            _method(calls.CLAIM, self._claim),
            _method(calls.HAND_BACK, self._hand_back),
            _method(calls.HEARTBEAT, lambda ids, _: store.heartbeat(ids)),
            _method(calls.FINISH, self._finish),
            _method(calls.CANCEL, lambda it, _: store.cancel(it.rollout_ids, reason=it.reason)),
            _method(calls.ADD_SPANS, self._add_spans),
            _method(calls.SPANS, self._spans),
            _method(calls.ROLLOUTS, lambda query, _: store.rollouts(query)),
            _method(calls.WAIT, self._wait),
            _method(calls.CONSUME, lambda ids, _: store.consume(ids)),
            _method(calls.PUBLISH, lambda resources, _: store.publish(resources)),
            _method(calls.RESOURCES, self._resources),
            _method(calls.PRUNE, self._prune),
            _method(calls.LEAD, lambda it, _: store.lead(it.instance, lease_s=it.lease_s)),
        ]
        return dict(table)

    async def _claim(self, asked: calls.Claiming, request: RpcRequest) -> list[Claim]:
        await self._displace(asked.claim_id)
        if asked.claim_id in self._handed_back:
            return []
        here = asyncio.current_task()
        assert here is not None
        self._handing_out[asked.claim_id] = here
        try:
            return await self._store.claim_for(
                ClaimRequest(asked.worker, asked.limit, asked.claim_id, repeated=request.retry > 0),
                timeout_s=_left(asked.timeout_s, request),
            )
        finally:
            if self._handing_out.get(asked.claim_id) is here:
                del self._handing_out[asked.claim_id]

    async def _hand_back(self, claim_ids: Sequence[str], _: RpcRequest) -> None:
        for claim_id in claim_ids:
            self._handed_back[claim_id] = None
            await self._displace(claim_id)
        while len(self._handed_back) > _REMEMBERED:
            del self._handed_back[next(iter(self._handed_back))]
        await self._store.hand_back(claim_ids)

    async def _displace(self, claim_id: str) -> None:
        """Cancel an earlier request for the same claim, whose connection is dead."""
        before = self._handing_out.pop(claim_id, None)
        if before is not None:
            before.cancel()
            await asyncio.wait({before})

    async def _finish(self, asked: calls.Finishing, _: RpcRequest) -> Attempt:
        return await self._store.finish(
            asked.attempt_id,
            status=asked.status,
            spans=_decoded(asked.spans),
            failure=asked.failure,
            output=asked.output,
        )

    async def _add_spans(self, blobs: Sequence[bytes], _: RpcRequest) -> Ingest:
        return await self._store.add_spans(_decoded(blobs))

    async def _spans(self, asked: calls.SpanReading, _: RpcRequest) -> list[bytes]:
        return await self._store.encoded_spans(asked.rollout_ids, attempt_id=asked.attempt_id)

    async def _wait(self, asked: calls.Waiting, request: RpcRequest) -> list[Rollout]:
        left_s = _left(asked.timeout_s, request)
        return await self._store.wait(asked.rollout_ids, timeout_s=left_s)

    async def _resources(self, asked: calls.Version, _: RpcRequest) -> list[Resources]:
        found = await self._store.resources(asked.number)
        return [] if found is None else [found]

    async def _prune(self, asked: calls.Pruning, _: RpcRequest) -> Pruned:
        store = self._store
        if not isinstance(store, Prunable):
            raise ConfigError(f"A {type(store).__name__} that is served deletes nothing for good")
        return await store.prune(asked.rollout_ids, dry_run=asked.dry_run)


async def serve_store(
    options: SqliteOptions, *, host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Serve a file until cancelled; attempts that were running at the last stop continue.

    Args:
        options: Options of the file, which is created if it does not exist.
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free one.
        ready: Called with the address once connections are accepted.

    Raises:
        ConfigError: there is no shared key, or the address is in use.
        StoreError: the file cannot be used.
    """
    store = SqliteStore(
        options.file(Path()),
        synchronous=options.synchronous,
        busy_timeout_s=options.busy_timeout_s,
        retention=options.retention,
        orphans="keep",
    )
    server = StoreServer(store, key=shared_key(), host=host, port=port)
    await server.start()
    try:
        ready(server.url)
        await asyncio.Event().wait()
    finally:
        await server.stop()


def _method(
    call: calls.StoreMethod[Q, A], work: Callable[[Q, RpcRequest], Awaitable[A]]
) -> tuple[str, RpcMethod]:
    async def method(request: RpcRequest) -> bytes:
        return encode(await work(call.question.decode(request.body), request))

    return call.name, method


async def _nothing() -> None:
    return


def _decoded(blobs: Sequence[bytes]) -> list[Span]:
    return [SPANS.decode(blob) for blob in blobs]


def _left(timeout_s: float | None, request: RpcRequest) -> float | None:
    """Return the seconds left of a timeout that started with the caller's first try."""
    return None if timeout_s is None else max(0.0, timeout_s - request.waited_s)
