"""Encryption of everything that a store holds with the active key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from agl_stores import rollout_pages
from msgspec.structs import replace

from agl_core.errors import StoreError
from agl_core.store import SPANS, BaseStore, Records, encode_span
from agl_encryption._cipher import from_text, key_id
from agl_encryption._records import key_of_span, keys_of_resources

if TYPE_CHECKING:
    from agl_core.types import Attempt, Resources, Rollout, Span
    from agl_encryption._records import Sealing

_BATCH = 20
"""Rollouts in one transaction: few, so that a run that uses the store waits only briefly."""


class Rekeyed(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of records that were encrypted again."""

    rollouts: int = 0
    """Rollouts whose task was encrypted again."""
    attempts: int = 0
    spans: int = 0
    resources: int = 0
    """Versions of the resources."""
    kept: int = 0
    """Tasks, spans and versions that needed no change."""

    def __add__(self, other: Rekeyed) -> Rekeyed:
        names = self.__struct_fields__
        return Rekeyed(**{name: getattr(self, name) + getattr(other, name) for name in names})


async def rekey(
    store: BaseStore,
    sealing: Sealing,
    *,
    everything: bool = False,
    report: Callable[[Rekeyed], None] = lambda _: None,
) -> Rekeyed:
    """Encrypt every record with the active key, in place, a few rollouts in each transaction.

    A record that is encrypted with it already stays, so a call that was interrupted is repeated.
    Other processes may use the store; what they write with another key after they were passed is
    not encrypted again.

    Args:
        store: An open store without layers.
        sealing: Has the active key and those of what is stored.
        everything: Encrypt also what is encrypted with the active key. Attempts then stay as they
            are, because equal results of an attempt are encrypted to equal bytes.
        report: Called with the numbers so far.

    Raises:
        EncryptionError: a record cannot be decrypted; those before it are encrypted again.
        StoreError: the store cannot replace what it holds.
    """
    work = _Rekeying(sealing, everything=everything)
    total = await store.write(work.resources)
    async for page in rollout_pages(store):
        ids = [one.id for one in page]
        for start in range(0, len(ids), _BATCH):
            part = ids[start : start + _BATCH]
            total += await store.write(partial(work.rollouts, ids=part))
            report(total)
    return total


class _Rekeying:
    """One pass over a store; its methods run inside transactions of the store."""

    def __init__(self, sealing: Sealing, *, everything: bool) -> None:
        keys = sealing.cipher.keys
        self._sealing = sealing
        self._active = keys.active if keys is not None and not everything else ""

    def resources(self, records: Records) -> Rekeyed:
        if type(records).rewrite is Records.rewrite:
            raise StoreError(
                "This store cannot replace what it holds, so agl store rekey cannot encrypt it "
                "again: copy its records by agl store copy, with the new key as the active one"
            )
        fresh: list[Resources] = []
        latest = records.latest_version()
        for version in range(1, latest + 1):
            stored = records.resources(version)
            if stored is not None and keys_of_resources(stored) - {self._active}:
                opened = self._sealing.open_resources(stored)
                fresh.append(self._sealing.seal_resources(opened))
        for each in fresh:
            records.rewrite(each)
        return Rekeyed(resources=len(fresh), kept=latest - len(fresh))

    def rollouts(self, records: Records, *, ids: Sequence[str]) -> Rekeyed:
        # All are decrypted before the first is written: an error leaves the transaction without
        # a write.
        found = [self._rollout(records, one) for one in records.rollouts(list(ids)).values()]
        for each in found:
            each.write(records)
        return sum((each.counts for each in found), Rekeyed())

    def _rollout(self, records: Records, rollout: Rollout) -> _Fresh:
        sealing, fresh = self._sealing, _Fresh(rollout.id)
        opened = sealing.open_rollout(rollout)
        if key_id(rollout.task.input) != self._active:
            sealed, _ = sealing.seal_rollout(opened)
            fresh.rollout = None if sealed.task == rollout.task else sealed
        for attempt, plain in zip(rollout.attempts, opened.attempts, strict=True):
            if attempt.status.final and _keys_of_attempt(attempt) - {self._active}:
                sealed = sealing.seal_attempt(plain)
                if sealed != attempt:
                    fresh.attempts.append((sealed, records.digest(attempt.id)))
            for blobs in records.spans([rollout.id], attempt.id):
                fresh.spans[attempt.id] = [self._span(blob, fresh) for blob in blobs]
        return fresh

    def _span(self, blob: bytes, fresh: _Fresh) -> tuple[str, bytes]:
        span: Span = SPANS.decode(blob)
        if key_of_span(span) == self._active:
            return span.id, blob
        (sealed,) = self._sealing.seal_spans(self._sealing.open_spans([span]))
        if sealed is span:
            return span.id, blob
        fresh.changed += 1
        return span.id, encode_span(sealed)


class _Fresh:
    """The records of one rollout as they are to be stored."""

    def __init__(self, rollout_id: str) -> None:
        self.id = rollout_id
        self.rollout: Rollout | None = None
        self.attempts: list[tuple[Attempt, bytes]] = []
        self.spans: dict[str, list[tuple[str, bytes]]] = {}
        """All spans by their attempts: those that change are deleted with the others."""
        self.changed = 0

    @property
    def counts(self) -> Rekeyed:
        spans = sum(map(len, self.spans.values()))
        return Rekeyed(
            rollouts=int(self.rollout is not None),
            attempts=len(self.attempts),
            spans=self.changed,
            kept=spans - self.changed + int(self.rollout is None),
        )

    def write(self, records: Records) -> None:
        if self.rollout is not None:
            records.rewrite(replace(self.rollout, attempts=()))
        for attempt, digest in self.attempts:
            records.save_attempt(attempt, due_at=attempt.lease_until, digest=digest)
        if self.changed:
            records.drop_spans([self.id])
            for attempt_id, rows in self.spans.items():
                records.add_spans(attempt_id, rows)


def _keys_of_attempt(attempt: Attempt) -> set[str | None]:
    """Return the keys of an attempt's values; None for one that is not encrypted."""
    found: list[Any] = []
    if attempt.output is not None:
        found.append(attempt.output)
    if attempt.failure is not None:
        found.append(from_text(attempt.failure.message))
    return {key_id(value) for value in found}
