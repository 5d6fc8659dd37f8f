"""The state changes of a rollout as pure functions, which all stores share.

::

    enqueue ─▶ QUEUED ─claim─▶ RUNNING ─finish─▶ SUCCEEDED | FAILED | CANCELLED
                  ▲               │
                  └── retry ◀─────┘   the failure's kind is in limits.retry_on, attempts remain

Each claim appends an attempt with the next fence; only the latest attempt can be running. Times
are Unix seconds.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from agl_core.clocks import new_id
from agl_core.errors import StaleAttemptError, StoreError
from agl_core.store._codec import ROLLOUTS, detached, encode
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Failure,
    FailureKind,
    Rollout,
    RolloutStatus,
    Span,
)

MAX_DEADLINE_GRACE_S = 5.0

_DEFAULT_FAILURES = {
    AttemptStatus.TIMED_OUT: (FailureKind.DEADLINE, "The attempt ran past its deadline"),
    AttemptStatus.CANCELLED: (FailureKind.CANCELLED, "The attempt was cancelled"),
    AttemptStatus.LOST: (FailureKind.LOST, "The attempt's worker is gone"),
}


def admit(rollout: Rollout, *, now: float) -> Rollout:
    """Return the rollout as it is first stored: queued, without attempts, as a separate copy.

    Raises:
        StoreError: a time limit is not finite and positive, `max_attempts` is less than 1, or the
            rollout has values that cannot be stored.
    """
    limits = rollout.limits
    for name in ("timeout_s", "lease_s"):
        value = getattr(limits, name)
        if not (math.isfinite(value) and value > 0):
            raise StoreError(
                f"Rollout {rollout.id!r} has limits.{name}={value!r}: "
                f"every attempt needs a finite time above 0"
            )
    if limits.max_attempts < 1:
        raise StoreError(
            f"Rollout {rollout.id!r} has limits.max_attempts={limits.max_attempts!r}: set 1 or more"
        )
    fresh = replace(
        rollout,
        status=RolloutStatus.QUEUED,
        attempts=(),
        consumed=False,
        created_at=rollout.created_at or now,
    )
    return detached(fresh, ROLLOUTS, f"Rollout {rollout.id!r}")


def same_request(stored: Rollout, offered: Rollout) -> bool:
    """Return whether both are the same request, ignoring the progress of the stored rollout."""
    # Encoded and decoded first, because an int given for a float field is read back as a float.
    offered = detached(offered, ROLLOUTS, f"Rollout {offered.id!r}")
    return _request(stored) == _request(offered)


def _request(rollout: Rollout) -> bytes:
    bare = replace(
        rollout, status=RolloutStatus.QUEUED, attempts=(), consumed=False, created_at=0.0
    )
    return encode(bare, canonical=True)


def start(rollout: Rollout, *, worker: str, now: float, claim_id: str = "") -> Rollout:
    """Append a running attempt under the next fence."""
    limits = rollout.limits
    attempt = Attempt(
        id=new_id("at"),
        rollout_id=rollout.id,
        fence=rollout.attempts[-1].fence + 1 if rollout.attempts else 1,
        worker=worker,
        claim_id=claim_id,
        started_at=now,
        lease_until=now + limits.lease_s,
        deadline_at=now + limits.timeout_s,
    )
    return replace(rollout, status=RolloutStatus.RUNNING, attempts=(*rollout.attempts, attempt))


def renew(rollout: Rollout, *, now: float) -> Rollout:
    """Extend the running attempt's lease; the deadline stays."""
    return _with_latest(rollout, lease_until=now + rollout.limits.lease_s)


def restart_timers(rollout: Rollout, *, now: float) -> Rollout:
    """Restart lease and deadline of the running attempt; its worker keeps its own deadline."""
    limits = rollout.limits
    return _with_latest(
        rollout, lease_until=now + limits.lease_s, deadline_at=now + limits.timeout_s
    )


def keep(rollout: Rollout, *, now: float) -> Rollout:
    """Extend the running attempt by at least one lease, after a restart of the store server."""
    until = now + rollout.limits.lease_s
    deadline_at = max(rollout.attempts[-1].deadline_at, until)
    return _with_latest(rollout, lease_until=until, deadline_at=deadline_at)


def due_at(rollout: Rollout) -> float:
    """Return when the watchdog must end the running attempt.

    The lease has no grace period. The deadline has one, because the worker also ends the attempt at
    its deadline and then sends its spans: the attempt's `timeout_s`, at most
    `MAX_DEADLINE_GRACE_S`.
    """
    attempt = rollout.attempts[-1]
    grace = min(MAX_DEADLINE_GRACE_S, rollout.limits.timeout_s)
    return min(attempt.lease_until, attempt.deadline_at + grace)


def running(rollout: Rollout, attempt_id: str) -> bool:
    """Return whether this attempt holds the fence."""
    attempt = rollout.attempt
    return attempt is not None and attempt.id == attempt_id and not attempt.status.final


def end(
    rollout: Rollout,
    *,
    status: AttemptStatus,
    failure: Failure | None,
    output: Any,
    now: float,
) -> Rollout:
    """End and seal the running attempt; set the rollout to a final status or queue it again.

    Args:
        output: The agent's return value as JSON values.

    Raises:
        StoreError: `status` is not final, or does not match `failure`.
    """
    failure = _failure_of(status, failure)
    ended = _with_latest(
        rollout,
        status=status,
        failure=failure,
        output=output,
        ended_at=now,
        sealed=True,
    )
    return replace(ended, status=_settled(ended, failure))


def _failure_of(status: AttemptStatus, failure: Failure | None) -> Failure | None:
    if not status.final:
        raise StoreError(f"An attempt cannot end as {status.value!r}: give a final status")
    if status is AttemptStatus.SUCCEEDED:
        if failure is not None:
            raise StoreError(
                f"A succeeded attempt cannot carry a failure ({failure.kind.value!r}): "
                f"finish it as 'failed'"
            )
        return None
    if failure is None and status is AttemptStatus.FAILED:
        raise StoreError("A failed attempt needs its failure: pass failure=Failure(kind=...)")
    if failure is None:
        kind, message = _DEFAULT_FAILURES[status]
        return Failure(kind=kind, message=message)
    return failure


def _settled(rollout: Rollout, failure: Failure | None) -> RolloutStatus:
    if failure is None:
        return RolloutStatus.SUCCEEDED
    limits = rollout.limits
    if failure.kind in limits.retry_on and len(rollout.attempts) < limits.max_attempts:
        return RolloutStatus.QUEUED
    if rollout.attempts[-1].status is AttemptStatus.CANCELLED:
        return RolloutStatus.CANCELLED
    return RolloutStatus.FAILED


def expire(rollout: Rollout, *, now: float) -> Rollout | None:
    """End the running attempt if its lease or deadline passed; return None otherwise."""
    if rollout.status is not RolloutStatus.RUNNING or due_at(rollout) > now:
        return None
    attempt = rollout.attempts[-1]
    limits = rollout.limits
    if attempt.deadline_at <= min(now, attempt.lease_until):
        status = AttemptStatus.TIMED_OUT
        text = f"The attempt ran past its deadline of {limits.timeout_s:g} s"
    else:
        status = AttemptStatus.LOST
        text = f"Worker {attempt.worker!r} sent no heartbeat for {limits.lease_s:g} s"
    kind, _ = _DEFAULT_FAILURES[status]
    failure = Failure(kind=kind, message=text)
    return end(rollout, status=status, failure=failure, output=None, now=now)


def cancel(rollout: Rollout, *, reason: str, now: float) -> Rollout:
    """Cancel a rollout that is not final, and its running attempt with it."""
    if rollout.status is RolloutStatus.RUNNING:
        failure = Failure(kind=FailureKind.CANCELLED, message=reason)
        rollout = end(
            rollout, status=AttemptStatus.CANCELLED, failure=failure, output=None, now=now
        )
    return replace(rollout, status=RolloutStatus.CANCELLED)


def recover(rollout: Rollout, *, now: float) -> Rollout:
    """Queue a rollout again whose attempt was lost in a crash of the process with the store.

    The rollout is queued even if it has used up its attempts, because the crash is not its failure.
    """
    failure = Failure(kind=FailureKind.LOST, message="The process that ran the attempt ended")
    lost = end(rollout, status=AttemptStatus.LOST, failure=failure, output=None, now=now)
    return replace(lost, status=RolloutStatus.QUEUED)


def hand_back(rollout: Rollout) -> Rollout:
    """Undo `start` for a worker that disconnected before it received its claim."""
    return replace(rollout, status=RolloutStatus.QUEUED, attempts=rollout.attempts[:-1])


def check_owner(rollout: Rollout, attempt_id: str) -> None:
    """Check that the attempt holds the fence.

    Raises:
        StaleAttemptError: the attempt ended or was replaced.
    """
    if running(rollout, attempt_id):
        return
    attempt = next(one for one in rollout.attempts if one.id == attempt_id)
    latest = rollout.attempts[-1]
    raise StaleAttemptError(
        f"Attempt {attempt_id!r} (fence {attempt.fence}) of rollout {rollout.id!r} ended as "
        f"{attempt.status.value!r}; the latest fence is {latest.fence}: drop this result"
    )


def finish_digest(
    *, status: AttemptStatus, failure: Failure | None, output: Any, spans: list[Span]
) -> bytes:
    """Return a digest of one `finish` call, to recognise its repetition."""
    ids = sorted(span.id for span in spans)
    content = encode([status, failure, output, ids], canonical=True)
    return blake2b(content, digest_size=16).digest()


def _with_latest(rollout: Rollout, **changes: Any) -> Rollout:
    *earlier, latest = rollout.attempts
    return replace(rollout, attempts=(*earlier, replace(latest, **changes)))
