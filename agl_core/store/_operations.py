"""The store's methods on any `Records`; each one makes all checks before its first write."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from agl_core.errors import StoreError
from agl_core.store import _transitions as transitions
from agl_core.store._codec import (
    ATTEMPTS,
    RESOURCES,
    SPAN_ORDERS,
    SPANS,
    detached,
    encode_span,
)
from agl_core.store._records import Lead, Records
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Resources,
    Rollout,
    RolloutStatus,
    Span,
    SpanKind,
)


@dataclass(slots=True)
class Changes:
    """The changes of a write that concern waiting callers and the watchdog once it is durable."""

    queued: int = 0
    final: list[str] = field(default_factory=list[str])
    due_at: float = math.inf
    """Earliest due time of the started attempts."""
    freed: bool = False
    """Whether rows were deleted, so that the medium can reclaim space."""


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """The arguments of one `finish`."""

    status: AttemptStatus
    spans: list[Span]
    failure: Failure | None
    output: Any
    """The output as JSON values."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The arguments of one `claim`."""

    worker: str
    limit: int
    claim_id: str = ""
    """Id of the request if it may be repeated; otherwise empty."""
    repeated: bool = False
    """Whether an earlier try may have been answered without the caller receiving the answer."""


class Operations:
    """The store's operations inside one transaction, at one point in time."""

    __slots__ = ("_now", "changes", "records")

    def __init__(self, records: Records, now: float) -> None:
        self.records = records
        self._now = now
        self.changes = Changes()

    def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        known = dict(self.records.rollouts([rollout.id for rollout in rollouts]))
        fresh: list[Rollout] = []
        for rollout in rollouts:
            stored = known.get(rollout.id)
            if stored is None:
                known[rollout.id] = transitions.admit(rollout, now=self._now)
                fresh.append(known[rollout.id])
            elif not transitions.same_request(stored, rollout):
                raise StoreError(
                    f"Rollout {rollout.id!r} exists with other content: use a new id for a new one"
                )
        for rollout in fresh:
            self.records.add_rollout(rollout)
        self.changes.queued += len(fresh)
        return [known[rollout.id] for rollout in rollouts]

    def claim(self, claiming: ClaimRequest) -> list[Claim]:
        if claiming.repeated:
            before = self._claimed(claiming.claim_id)
            if before:
                return before
        claims: list[Claim] = []
        for rollout in self.records.queued(claiming.limit):
            started = transitions.start(
                rollout, worker=claiming.worker, now=self._now, claim_id=claiming.claim_id
            )
            self._save(started)
            self.changes.due_at = min(self.changes.due_at, transitions.due_at(started))
            claims.append(Claim(rollout=started, attempt=started.attempts[-1]))
        return claims

    def _claimed(self, claim_id: str) -> list[Claim]:
        """Return the claims of an earlier try of the request, with renewed leases."""
        held = [
            transitions.renew(rollout, now=self._now) for rollout in self._running_of({claim_id})
        ]
        for rollout in held:
            self._save_attempt(rollout)
        return [Claim(rollout=rollout, attempt=rollout.attempts[-1]) for rollout in held]

    def _running_of(self, claim_ids: Collection[str]) -> list[Rollout]:
        running = self.records.running(due_by=math.inf)
        return [rollout for rollout in running if rollout.attempts[-1].claim_id in claim_ids]

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Undo claims that did not reach their worker.

        A claim whose attempt has changed since is kept: a repeated request has returned it.
        """
        for claim in claims:
            rollout = self.records.rollouts([claim.rollout.id])[claim.rollout.id]
            if rollout.attempt == claim.attempt:
                self._undo_start(rollout)

    def hand_back_of(self, claim_ids: Collection[str]) -> None:
        """Undo the claims of requests whose callers disconnected."""
        for rollout in self._running_of(claim_ids):
            self._undo_start(rollout)

    def _undo_start(self, rollout: Rollout) -> None:
        self.records.drop_attempt(rollout.attempts[-1].id)
        self.records.save_rollout(transitions.hand_back(rollout))
        self.changes.queued += 1

    def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        gone: list[str] = []
        for attempt_id in attempt_ids:
            rollout = self._rollout_of(attempt_id)
            if rollout is None or not transitions.running(rollout, attempt_id):
                gone.append(attempt_id)
            else:
                self._save_attempt(transitions.renew(rollout, now=self._now))
        return gone

    def finish(self, attempt_id: str, ending: FinishRequest) -> Attempt:
        rollout = self._rollout_of(attempt_id)
        if rollout is None:
            raise StoreError(f"Attempt {attempt_id!r} does not exist in this store")
        self._check_spans(attempt_id, rollout.id, ending.spans)
        digest = transitions.finish_digest(
            status=ending.status,
            failure=ending.failure,
            output=ending.output,
            spans=ending.spans,
        )
        if (
            not transitions.running(rollout, attempt_id)
            and self.records.digest(attempt_id) == digest
        ):
            return next(one for one in rollout.attempts if one.id == attempt_id)
        transitions.check_owner(rollout, attempt_id)
        ended = transitions.end(
            rollout,
            status=ending.status,
            failure=ending.failure,
            output=ending.output,
            now=self._now,
        )
        attempt = detached(ended.attempts[-1], ATTEMPTS, f"Attempt {attempt_id!r}")
        ended = replace(ended, attempts=(*ended.attempts[:-1], attempt))
        rows = [(span.id, encode_span(span)) for span in ending.spans]
        self.records.add_spans(attempt_id, rows)
        self._save_ended(ended, digest)
        return attempt

    def _check_spans(self, attempt_id: str, rollout_id: str, spans: Sequence[Span]) -> None:
        for span in spans:
            if (span.attempt_id, span.rollout_id) != (attempt_id, rollout_id):
                raise StoreError(
                    f"Span {span.id!r} says attempt {span.attempt_id!r} of rollout "
                    f"{span.rollout_id!r}, but comes with attempt {attempt_id!r} of {rollout_id!r}"
                )

    def cancel(self, rollout_ids: Sequence[str], reason: str) -> list[Rollout]:
        known = existing(self.records, rollout_ids)
        for rollout in known.values():
            if not rollout.status.final:
                cancelled = transitions.cancel(rollout, reason=reason, now=self._now)
                known[rollout.id] = cancelled
                if rollout.status is RolloutStatus.RUNNING:
                    self._save_ended(cancelled)
                else:
                    self.records.save_rollout(cancelled)
                    self.changes.final.append(cancelled.id)
        return [known[rollout_id] for rollout_id in rollout_ids]

    def restart_timers(self) -> None:
        """Restart all leases and deadlines from now, after the clock was set."""
        for rollout in self.records.running(due_by=math.inf):
            self._save_attempt(transitions.restart_timers(rollout, now=self._now))
        lead = self.records.lead()
        if lead is not None:
            self.records.save_lead(replace(lead, until=self._now + lead.lease_s))

    def expire(self) -> float:
        """End attempts that are due; return the next due time."""
        for rollout in self.records.running(due_by=self._now):
            ended = transitions.expire(rollout, now=self._now)
            if ended is not None:
                self._save_ended(ended)
        return self.records.next_due()

    def extend_running(self) -> None:
        """Extend all running attempts by at least one lease after a restart of the store server.

        A runner past its deadline has this time to send its result.
        """
        for rollout in self.records.running(due_by=math.inf):
            self._save_attempt(transitions.keep(rollout, now=self._now))

    def requeue_running(self) -> int:
        """Queue all running rollouts again; return their number."""
        rollouts = self.records.running(due_by=math.inf)
        for rollout in rollouts:
            self._save_ended(transitions.recover(rollout, now=self._now))
        return len(rollouts)

    def add_spans(self, spans: Sequence[Span]) -> tuple[Ingest, list[str]]:
        """Record spans; return their counts and the attempts that are not in this store."""
        by_attempt: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            by_attempt.setdefault((span.attempt_id, span.rollout_id), []).append(span)
        accepted = duplicate = late = 0
        strangers: list[str] = []
        for (attempt_id, rollout_id), group in by_attempt.items():
            owner = self.records.owner(attempt_id)
            if owner is None or owner.rollout_id != rollout_id:
                strangers.append(attempt_id)
            elif owner.running:
                rows = [(span.id, encode_span(span)) for span in group]
                added = self.records.add_spans(attempt_id, rows)
                accepted += added
                duplicate += len(group) - added
            else:
                known = self.records.known_spans(attempt_id, [span.id for span in group])
                duplicate += known
                in_time = self._graced(attempt_id, rollout_id, group)
                rows = [(span.id, encode_span(span)) for span in in_time]
                added = self.records.add_spans(attempt_id, rows)
                accepted += added
                late += len(group) - known - added
        return Ingest(accepted=accepted, duplicate=duplicate, late=late), strangers

    def _graced(self, attempt_id: str, rollout_id: str, spans: Sequence[Span]) -> list[Span]:
        """Return the rewards among an ended attempt's late spans, if within `reward_grace_s`."""
        rewards = [span for span in spans if span.kind is SpanKind.REWARD]
        rollout = self.records.rollouts([rollout_id])[rollout_id] if rewards else None
        if rollout is None or rollout.consumed or rollout.attempts[-1].id != attempt_id:
            return []
        grace_s = rollout.limits.reward_grace_s
        late_s = self._now - (rollout.attempts[-1].ended_at or 0.0)
        return rewards if grace_s > 0 and late_s <= grace_s else []

    def consume(self, rollout_ids: Sequence[str], *, drop_spans: bool) -> int:
        known = existing(self.records, rollout_ids)
        for rollout in known.values():
            if not rollout.status.final:
                raise StoreError(
                    f"Rollout {rollout.id!r} is {rollout.status.value!r} and cannot be consumed: "
                    f"wait until it is final"
                )
        fresh = [rollout for rollout in known.values() if not rollout.consumed]
        for rollout in fresh:
            self.records.save_rollout(replace(rollout, consumed=True))
        if drop_spans and fresh:
            self.records.drop_spans([rollout.id for rollout in fresh])
            self.changes.freed = True
        return len(fresh)

    def publish(self, resources: Resources) -> Resources:
        numbered = replace(
            resources,
            version=self.records.latest_version() + 1,
            created_at=resources.created_at or self._now,
        )
        numbered = detached(numbered, RESOURCES, f"Resources of run {resources.run_id!r}")
        latest = self.records.resources(numbered.version - 1)
        if latest is not None and _same_content(latest, numbered):
            return latest
        self.records.add_resources(numbered)
        return numbered

    def lead(self, instance: str, lease_s: float) -> Lead | None:
        """Take, renew or release the lead; return the current lead."""
        held = self.records.lead()
        if held is not None and held.instance != instance:
            bounded = replace(held, until=min(held.until, self._now + held.lease_s))
            if lease_s == 0 or bounded.until > self._now:
                if bounded != held:
                    self.records.save_lead(bounded)
                return bounded
        lead = Lead(instance=instance, until=self._now + lease_s, lease_s=lease_s)
        self.records.save_lead(lead if lease_s > 0 else None)
        return lead if lease_s > 0 else None

    def _rollout_of(self, attempt_id: str) -> Rollout | None:
        owner = self.records.owner(attempt_id)
        if owner is None:
            return None
        return self.records.rollouts([owner.rollout_id])[owner.rollout_id]

    def _save_attempt(self, rollout: Rollout, digest: bytes = b"") -> None:
        self.records.save_attempt(
            rollout.attempts[-1], due_at=transitions.due_at(rollout), digest=digest
        )

    def _save(self, rollout: Rollout, digest: bytes = b"") -> None:
        self._save_attempt(rollout, digest)
        self.records.save_rollout(rollout)

    def _save_ended(self, rollout: Rollout, digest: bytes = b"") -> None:
        self._save(rollout, digest)
        if rollout.status.final:
            self.changes.final.append(rollout.id)
        else:
            self.changes.queued += 1


def _same_content(one: Resources, other: Resources) -> bool:
    return one == replace(other, version=one.version, created_at=one.created_at)


def existing(records: Records, rollout_ids: Sequence[str]) -> dict[str, Rollout]:
    """Return rollouts by id.

    Raises:
        StoreError: a rollout does not exist.
    """
    known = dict(records.rollouts(rollout_ids))
    for rollout_id in rollout_ids:
        if rollout_id not in known:
            raise StoreError(f"Rollout {rollout_id!r} does not exist in this store")
    return known


def spans_of(records: Records, rollout_ids: Sequence[str], attempt_id: str | None) -> list[Span]:
    """Return spans ordered by rollout id, fence, and `Span.order` within an attempt."""
    spans: list[Span] = []
    for blobs in records.spans(rollout_ids, attempt_id):
        spans += sorted(map(SPANS.decode, blobs), key=lambda span: span.order)
    return spans


def encoded_spans_of(
    records: Records, rollout_ids: Sequence[str], attempt_id: str | None
) -> list[bytes]:
    """Return the spans of `spans_of` in their stored form; only their order is decoded."""
    spans: list[bytes] = []
    for blobs in records.spans(rollout_ids, attempt_id):
        spans += sorted(blobs, key=SPAN_ORDERS.decode)
    return spans


def resources_of(records: Records, version: int | None) -> Resources | None:
    """Return a version of the resources, by default the latest; None if none was published.

    Raises:
        StoreError: the version does not exist.
    """
    latest = records.latest_version()
    if version is None:
        return records.resources(latest) if latest else None
    found = records.resources(version)
    if found is None:
        raise StoreError(f"Resources version {version} does not exist: the latest is {latest}")
    return found
