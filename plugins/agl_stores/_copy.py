"""Copying of a store's records into another store, compared afterwards."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from agl_core.clocks import new_id
from agl_core.errors import LeadHeldError, StoreError
from agl_core.interfaces import Store, StoreLifecycle
from agl_core.store import BaseStore, Lead, Records
from agl_core.types import Resources, Rollout, RolloutQuery
from agl_stores._paging import rollout_pages
from agl_stores._records import KINDS, Digests, RolloutRecords, ended, insert, read_rollouts

_LEADER: Final = "agl store copy"
"""Instance that leads the destination meanwhile: always the same, so that a repetition may continue."""
_LEASE_S: Final = 60.0
_PAGE: Final = 20
"""Rollouts that are read and written together."""


@dataclass(frozen=True, slots=True)
class CopiedKind:
    """What was copied of one kind of records."""

    kind: str
    source: int
    """Records in the source, of the chosen run."""
    before: int
    """Records of these that the destination had before."""
    destination: int
    """Records of these that the destination has now."""
    digest: str
    """SHA-256 of the source's records."""
    digest_destination: str

    @property
    def same(self) -> bool:
        return (self.source, self.digest) == (self.destination, self.digest_destination)


@dataclass(slots=True)
class _Plan:
    new: list[str] = field(default_factory=list[str])
    """Rollouts to copy, in the order in which they are inserted."""
    there: list[str] = field(default_factory=list[str])
    """Rollouts that the destination has with the same content."""
    versions: set[int] = field(default_factory=set[int])
    """Versions of the resources that the rollouts name."""


async def copy_store(
    source: StoreLifecycle, target: BaseStore, *, run_id: str | None = None, live: bool = False
) -> list[CopiedKind]:
    """Copy rollouts, attempts, spans and resources into another store, and compare the stores.

    Both stores are open. Records that the destination already has are compared and kept, so an
    interrupted copy may be repeated. Neither the lead nor leases are copied: an attempt that is
    running is copied as lost at the end of its lease, and its rollout as queued. Every rollout is
    written with its attempts and spans in one transaction.

    Args:
        source: The store to copy from; nothing in it is changed.
        target: The store to copy to; its other records stay.
        run_id: Copy the rollouts of this run and the resources they use; None copies all.
        live: Copy although a trainer leads the source.

    Raises:
        StoreError: a trainer leads one of the stores, or the destination has other content under
            the same ids (nothing was then copied), or the source has no such run.
    """
    copy = _Copy(source, target, run_id)
    if not live:
        await _check_lead(source)
    await target.read(lambda records: _refuse_lead(records.lead(), target.clock.now()))
    plan = await copy.plan()
    async with _leading(target):
        await copy.copy_resources(plan)
        for start in range(0, len(plan.new), _PAGE):
            await copy.copy_rollouts(plan.new[start : start + _PAGE])
        return await copy.compare(plan)


class _Copy:
    """One copy, with counts and digests of what it read."""

    def __init__(self, source: StoreLifecycle, target: BaseStore, run_id: str | None) -> None:
        self._source = source
        self._target = target
        self._run_id = run_id
        self._finishes = isinstance(source, BaseStore)
        self._read = Digests()
        self._before = Digests()

    async def plan(self) -> _Plan:
        """Compare what both stores have; add what the destination has to the counts.

        Raises:
            StoreError: a rollout or version is in both with other content.
        """
        plan = _Plan()
        queued = await self._queued()
        async for page in rollout_pages(self._source, RolloutQuery(run_id=self._run_id)):
            for start in range(0, len(page), _PAGE):
                piece = page[start : start + _PAGE]
                there = await self._same([rollout.id for rollout in piece])
                plan.there += there
                plan.new += [each.id for each in piece if each.id not in there]
            plan.versions |= {rollout.resources_version for rollout in page}
        if self._run_id is not None and not (plan.new or plan.there):
            raise StoreError(
                f"The source has no rollouts of run {self._run_id!r}: see agl store ls"
            )
        # Queued ones last and in their order, because workers get them in the order of insertion.
        order = {rollout_id: number for number, rollout_id in enumerate(queued)}
        plan.new.sort(key=lambda rollout_id: order.get(rollout_id, -1))
        for resources in await self._versions(plan):
            stored = await self._stored(resources.version)
            if stored is not None and not _same_resources(stored, resources):
                raise StoreError(
                    f"Version {resources.version} of the resources (run {resources.run_id!r}) has "
                    f"other content in the destination (run {stored.run_id!r}): copy into a new "
                    f"store. Nothing was copied"
                )
        return plan

    async def _queued(self) -> list[str]:
        """Return the queued rollouts in the order of their insertion, if the store states it."""
        if not isinstance(self._source, BaseStore):
            return []
        return await self._source.read(
            lambda records: [rollout.id for rollout in records.queued(sys.maxsize)]
        )

    async def _same(self, ids: Sequence[str]) -> list[str]:
        """Return those of the rollouts that the destination has."""
        stored = {each.rollout.id: each for each in await read_rollouts(self._target, ids)}
        if not stored:
            return []
        for records in await self._rollouts(list(stored)):
            rollout_id = records.rollout.id
            one, other = Digests(), Digests()
            one.add_rollout(records, finishes=self._finishes)
            other.add_rollout(stored[rollout_id], finishes=self._finishes)
            differing = [kind for kind in KINDS if not one.same(other, kind)]
            if differing:
                raise StoreError(
                    f"Rollout {rollout_id!r} is in the destination with other content "
                    f"({', '.join(differing)}): one of the stores continued it. Copy into a "
                    f"new store. Nothing was copied"
                )
            self._read.add_rollout(records, finishes=self._finishes)
            self._before.add_rollout(stored[rollout_id], finishes=self._finishes)
        return list(stored)

    async def _rollouts(self, ids: Sequence[str]) -> list[RolloutRecords]:
        return [await ended(records) for records in await read_rollouts(self._source, ids)]

    async def _versions(self, plan: _Plan) -> list[Resources]:
        latest = await self._source.resources()
        found = [
            await _version(self._source, number)
            for number in range(1, (latest.version if latest is not None else 0) + 1)
        ]
        return [
            each
            for each in found
            if each is not None
            and (self._run_id in (None, each.run_id) or each.version in plan.versions)
        ]

    async def _stored(self, version: int) -> Resources | None:
        return await self._target.read(lambda records: records.resources(version))

    async def copy_resources(self, plan: _Plan) -> None:
        for resources in await self._versions(plan):
            self._read.add_resources(resources)
            if await self._stored(resources.version) is None:
                await self._target.write(lambda records, each=resources: _add(records, each))
            else:
                self._before.add_resources(resources)
            plan.versions.add(resources.version)

    async def copy_rollouts(self, ids: Sequence[str]) -> None:
        """Write rollouts in one transaction.

        Raises:
            StoreError: another process added one of them meanwhile, or its attempts exist.
        """
        found = {each.rollout.id: each for each in await self._rollouts(ids)}
        ordered = [found[each] for each in ids if each in found]
        now = self._target.clock.now()

        def work(records: Records) -> None:
            _check_new(records, [each.rollout for each in ordered])
            _lead(records, now)
            for each in ordered:
                insert(records, each)

        await self._target.write(work)
        for each in ordered:
            self._read.add_rollout(each, finishes=self._finishes)

    async def compare(self, plan: _Plan) -> list[CopiedKind]:
        """Read everything that was copied from the destination, and compare it with the source."""
        written = Digests()
        for version in sorted(plan.versions):
            resources = await self._stored(version)
            if resources is not None:
                written.add_resources(resources)
        ids = [*plan.there, *plan.new]
        for start in range(0, len(ids), _PAGE):
            for each in await read_rollouts(self._target, ids[start : start + _PAGE]):
                written.add_rollout(each, finishes=self._finishes)
        return [
            CopiedKind(
                kind=kind,
                source=self._read.counts[kind],
                before=self._before.counts[kind],
                destination=written.counts[kind],
                digest=self._read.digest(kind),
                digest_destination=written.digest(kind),
            )
            for kind in KINDS
        ]


def _same_resources(one: Resources, other: Resources) -> bool:
    digests = Digests(), Digests()
    for each, resources in zip(digests, (one, other), strict=True):
        each.add_resources(resources)
    return digests[0].same(digests[1], "resources")


def _add(records: Records, resources: Resources) -> None:
    if records.resources(resources.version) is not None:
        raise _meanwhile(f"Version {resources.version} of the resources")
    records.add_resources(resources)


def _check_new(records: Records, rollouts: Sequence[Rollout]) -> None:
    if known := list(records.rollouts([rollout.id for rollout in rollouts])):
        raise _meanwhile(f"Rollout {known[0]!r}")
    for rollout in rollouts:
        for attempt in rollout.attempts:
            owner = records.owner(attempt.id)
            if owner is not None:
                raise StoreError(
                    f"Attempt {attempt.id!r} belongs to rollout {owner.rollout_id!r} in the "
                    f"destination, and to {rollout.id!r} in the source: copy into a new store"
                )


def _meanwhile(what: str) -> StoreError:
    return StoreError(
        f"{what} was added to the destination by another process: end that, and copy again"
    )


async def _version(store: Store, number: int) -> Resources | None:
    """Return one version; None if the store lacks it, as a copy of one run may."""
    if isinstance(store, BaseStore):
        return await store.read(lambda records: records.resources(number))
    try:
        return await store.resources(number)
    except StoreError:
        await store.resources()  # raises if the store cannot be reached
        return None


async def _check_lead(source: StoreLifecycle) -> None:
    """Check that no trainer leads the source.

    Raises:
        StoreError: one does.
    """
    if isinstance(source, BaseStore):
        lead = await source.read(lambda records: records.lead())
        held = lead is not None and _until(lead, source.clock.now()) > source.clock.now()
        if lead is not None and held:
            raise _led("source", lead.instance)
        return
    instance = new_id(_LEADER.replace(" ", "-"))
    try:
        await source.lead(instance, lease_s=1.0)
    except LeadHeldError as error:
        raise _led("source", str(error)) from error
    await source.lead(instance, lease_s=0.0)


def _led(which: str, leader: str) -> StoreError:
    fix = ", or copy what it has until now with --live" if which == "source" else ""
    return StoreError(f"A trainer leads the {which} ({leader}): stop it first{fix}")


def _until(lead: Lead, now: float) -> float:
    """Return the end of a lease, also after the clock was set back."""
    return min(lead.until, now + lead.lease_s)


def _refuse_lead(lead: Lead | None, now: float) -> None:
    if lead is not None and lead.instance != _LEADER and _until(lead, now) > now:
        raise _led("destination", lead.instance)


def _lead(records: Records, now: float) -> None:
    records.save_lead(Lead(instance=_LEADER, until=now + _LEASE_S, lease_s=_LEASE_S))


@asynccontextmanager
async def _leading(target: BaseStore) -> AsyncGenerator[None, None]:
    """Lead the destination, so that no trainer starts on it before it is complete."""

    def take(records: Records) -> None:
        _refuse_lead(records.lead(), target.clock.now())
        _lead(records, target.clock.now())

    def release(records: Records) -> None:
        lead = records.lead()
        if lead is not None and lead.instance == _LEADER:
            records.save_lead(None)

    await target.write(take)
    try:
        yield
    finally:
        await target.write(release)
