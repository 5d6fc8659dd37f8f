"""The layer ``encryption`` of stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agl_stores import StoreLayer
from msgspec.structs import replace

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.store import ROLLOUTS, encode
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Resources,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    Span,
    Task,
)
from agl_encryption._cipher import Cipher
from agl_encryption._keys import Keys, load_keys
from agl_encryption._options import FIELDS, EncryptionOptions
from agl_encryption._records import Sealing


def make_layer(options: EncryptionOptions | None, store: StoreLifecycle) -> EncryptedStore:
    """Make the layer.

    Without a section in the configuration it encrypts if the environment has a key.

    Raises:
        ConfigError: a key is wrong, or the section asks for encryption without any.
    """
    keys = load_keys(options)
    if keys is None and options is not None:
        keys = Keys({})  # raises
    cipher = Cipher(keys)
    return EncryptedStore(store, Sealing(cipher, options.fields if options else FIELDS))


class EncryptedStore(StoreLayer):
    """A store whose records are encrypted by this process before they are stored.

    Records that are not encrypted are read as they are. Without keys it encrypts nothing, and
    reading an encrypted record is an error, except for a store that is only `shown`.
    """

    def __init__(self, store: StoreLifecycle, sealing: Sealing) -> None:
        super().__init__(store)
        self._sealing = sealing

    @property
    def confidential(self) -> bool:
        return self._sealing.cipher.keys is not None or super().confidential

    def shown(self) -> StoreLifecycle:
        inner = self.inner.shown() if isinstance(self.inner, StoreLayer) else self.inner
        return EncryptedStore(inner, self._sealing.for_people())

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Queue rollouts; those that exist with equal content stay as they are.

        Equal content is encrypted in another way each time. So rollouts that the inner store
        refuses are compared with the stored ones after decryption.
        """
        sealed: dict[str, tuple[Rollout, Rollout, Task]] = {}
        offered: list[Rollout] = []
        for rollout in rollouts:
            known = sealed.get(rollout.id)
            if known is None or not _same_request(known[0], rollout):
                known = (rollout, *self._sealing.seal_rollout(rollout))
                sealed.setdefault(rollout.id, known)
            offered.append(known[1])
        try:
            queued = await self.inner.enqueue(offered)
        except StoreError:
            kept = await self._stored_of(rollouts)
            if not kept:
                raise
            queued = await self.inner.enqueue([kept.get(one.id, one) for one in offered])
        return [self._queued(one, *sealed[one.id][1:]) for one in queued]

    def _queued(self, stored: Rollout, offered: Rollout, task: Task) -> Rollout:
        """Return a queued rollout with its task, which is decrypted only if it is an older one."""
        if stored.attempts or stored.task != offered.task or task is offered.task:
            return self._sealing.open_rollout(stored)
        return replace(stored, task=task)

    async def _stored_of(self, rollouts: Sequence[Rollout]) -> dict[str, Rollout]:
        """Return the stored rollouts whose content is that of an offered one."""
        offered = {rollout.id: rollout for rollout in rollouts}
        query = RolloutQuery(ids=tuple(offered), limit=len(offered))
        stored = await self.inner.rollouts(query)
        return {
            one.id: one
            for one in stored
            if all(
                _same_request(self._sealing.open_rollout(one), each)
                for each in rollouts
                if each.id == one.id
            )
        }

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        claims = await self.inner.claim(worker, limit=limit, timeout_s=timeout_s)
        return [
            Claim(
                rollout=self._sealing.open_rollout(claim.rollout),
                attempt=self._sealing.open_attempt(claim.attempt),
            )
            for claim in claims
        ]

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        attempt = await self.inner.finish(
            attempt_id,
            status=status,
            spans=self._sealing.seal_spans(spans),
            failure=self._sealing.seal_failure(attempt_id, failure),
            output=self._sealing.seal_output(attempt_id, output),
        )
        return self._sealing.open_attempt(attempt)

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        return self._opened(await self.inner.cancel(rollout_ids, reason=reason))

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        return await self.inner.add_spans(self._sealing.seal_spans(spans))

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        spans = await self.inner.spans(rollout_ids, attempt_id=attempt_id)
        return self._sealing.open_spans(spans)

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        return self._opened(await self.inner.rollouts(query))

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        return self._opened(await self.inner.wait(rollout_ids, timeout_s=timeout_s))

    async def publish(self, resources: Resources) -> Resources:
        """Publish resources; the content of the latest version stays encrypted as it is."""
        sealed = self._sealing.seal_resources(resources)
        latest = await self.inner.resources()
        if latest is not None:
            opened = self._sealing.open_resources(latest)
            if opened.items == resources.items:
                sealed = replace(sealed, items=latest.items)
        return self._sealing.open_resources(await self.inner.publish(sealed))

    async def resources(self, version: int | None = None) -> Resources | None:
        found = await self.inner.resources(version)
        return None if found is None else self._sealing.open_resources(found)

    def _opened(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [self._sealing.open_rollout(rollout) for rollout in rollouts]


def _same_request(one: Rollout, other: Rollout) -> bool:
    return _request(one) == _request(other)


def _request(rollout: Rollout) -> bytes:
    bare = replace(
        rollout, status=RolloutStatus.QUEUED, attempts=(), consumed=False, created_at=0.0
    )
    try:
        # Encoded twice, because an int given for a float field is read back as a float.
        return encode(ROLLOUTS.decode(encode(bare)), canonical=True)
    except RecursionError:
        return b""  # equal to no stored request
