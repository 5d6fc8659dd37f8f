"""Rules of the store contract: fences, ends, retries, the watchdog."""

from __future__ import annotations

import asyncio
import math
import time
from typing import ClassVar

import pytest

from agl_core.errors import StaleAttemptError, StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    FailureKind,
    Limits,
    Rollout,
    RolloutQuery,
    RolloutStatus,
)
from agl_testing import _store_samples as sample
from agl_testing._guard import ContractSuite

_ENDS = (AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.CANCELLED)


class AttemptRules(ContractSuite):
    """Rules on writes of attempts, and on attempts that do not respond."""

    patience_s: ClassVar[float]

    async def test_late_result_of_a_replaced_attempt_is_refused(
        self, store: StoreLifecycle
    ) -> None:
        old = await sample.begin(store, limits=sample.short(max_attempts=2))
        (new,) = await store.claim("w2", timeout_s=self.patience_s)
        assert (new.rollout.id, new.attempt.fence) == (old.rollout.id, 2)
        with pytest.raises(StaleAttemptError, match=old.attempt.id):
            await sample.succeed(store, old, [sample.span(old)])
        assert await store.spans([old.rollout.id]) == []
        rollout = await _stored(store, old)
        assert rollout.attempts[0].status is AttemptStatus.LOST
        assert rollout.attempts[-1].id == new.attempt.id

    async def test_repeated_finish_is_answered_with_the_stored_attempt(
        self, store: StoreLifecycle
    ) -> None:
        claim = await sample.begin(store)
        spans = [sample.span(claim), sample.span(claim)]
        output = {"answer": ["4", None, 1.5]}
        first = await store.finish(
            claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=spans, output=output
        )
        again = await store.finish(
            claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=spans, output=output
        )
        assert again == first
        assert first.output == output
        assert first.sealed
        assert len(await store.spans([claim.rollout.id])) == 2

    async def test_repeated_failure_is_answered_while_its_retry_runs(
        self, store: StoreLifecycle
    ) -> None:
        claim = await sample.begin(store, limits=Limits(max_attempts=2))
        first = await _fail(store, claim, FailureKind.ENGINE)
        (retry,) = await store.claim("w2", timeout_s=self.patience_s)
        assert await _fail(store, claim, FailureKind.ENGINE) == first
        assert (await _stored(store, claim)).attempt == retry.attempt

    @pytest.mark.parametrize("end", _ENDS)
    async def test_final_states_are_final(self, store: StoreLifecycle, end: AttemptStatus) -> None:
        claim = await sample.begin(store)
        failed = end is AttemptStatus.FAILED
        await store.finish(
            claim.attempt.id,
            status=end,
            failure=sample.failure(FailureKind.AGENT) if failed else None,
        )
        before = await _stored(store, claim)
        for other in _ENDS:
            with pytest.raises(StaleAttemptError, match=claim.attempt.id):
                await store.finish(
                    claim.attempt.id,
                    status=other,
                    spans=[sample.span(claim)],
                    failure=sample.failure(FailureKind.REWARD)
                    if other is AttemptStatus.FAILED
                    else None,
                )
        await store.cancel([claim.rollout.id], reason="too late")
        assert await _stored(store, claim) == before
        assert await store.spans([claim.rollout.id]) == []

    async def test_cancelled_rollout_never_succeeds(self, store: StoreLifecycle) -> None:
        claim = await sample.begin(store)
        await store.cancel([claim.rollout.id], reason="not needed")
        with pytest.raises(StaleAttemptError, match="cancelled"):
            await sample.succeed(store, claim)
        assert (await _stored(store, claim)).status is RolloutStatus.CANCELLED

    async def test_refused_finish_writes_nothing(self, store: StoreLifecycle) -> None:
        claim, other = await sample.begin_all(store, 2)
        with pytest.raises(StoreError, match=other.attempt.id):
            await sample.succeed(store, claim, [sample.span(claim), sample.span(other)])
        assert await store.spans([claim.rollout.id, other.rollout.id]) == []
        rollout = await _stored(store, claim)
        assert rollout.status is RolloutStatus.RUNNING
        for status, failure in (
            (AttemptStatus.RUNNING, None),
            (AttemptStatus.FAILED, None),
            (AttemptStatus.SUCCEEDED, sample.failure(FailureKind.AGENT)),
        ):
            with pytest.raises(StoreError):
                await store.finish(claim.attempt.id, status=status, failure=failure)
        assert await _stored(store, claim) == rollout
        with pytest.raises(StoreError, match="at_unknown"):
            await store.finish("at_unknown", status=AttemptStatus.SUCCEEDED)

    @pytest.mark.parametrize("kind", list(FailureKind))
    async def test_failures_are_retried_by_their_kind(
        self, store: StoreLifecycle, kind: FailureKind
    ) -> None:
        limits = Limits(max_attempts=2, retry_on=(kind,))
        retried = await sample.begin(store, limits=limits)
        attempt = await _fail(store, retried, kind)
        assert attempt.failure == sample.failure(kind)
        (again,) = await store.claim("w2", timeout_s=self.patience_s)
        assert (again.rollout.id, again.attempt.fence) == (retried.rollout.id, 2)
        await _fail(store, again, kind)
        assert (await _stored(store, retried)).status is RolloutStatus.FAILED

        others = tuple(other for other in FailureKind if other is not kind)
        once = await sample.begin(store, limits=Limits(max_attempts=2, retry_on=others))
        await _fail(store, once, kind)
        assert (await _stored(store, once)).status is RolloutStatus.FAILED
        assert await store.claim("w2", timeout_s=0) == []

    async def test_watchdog_ends_attempts_without_heartbeat(self, store: StoreLifecycle) -> None:
        claim = await sample.begin(store, limits=sample.short())
        (rollout,) = await store.wait([claim.rollout.id], timeout_s=self.patience_s)
        attempt = rollout.attempts[-1]
        assert rollout.status is RolloutStatus.FAILED
        assert (attempt.status, attempt.sealed) == (AttemptStatus.LOST, True)
        assert attempt.failure is not None
        assert attempt.failure.kind is FailureKind.LOST
        assert attempt.ended_at is not None
        assert attempt.ended_at >= attempt.lease_until

    async def test_watchdog_ends_attempts_past_their_deadline(self, store: StoreLifecycle) -> None:
        limits = Limits(timeout_s=0.02, lease_s=60.0)
        claim = await sample.begin(store, limits=limits)
        (rollout,) = await store.wait([claim.rollout.id], timeout_s=self.patience_s)
        attempt = rollout.attempts[-1]
        assert rollout.status is RolloutStatus.FAILED
        assert (attempt.status, attempt.sealed) == (AttemptStatus.TIMED_OUT, True)
        assert attempt.failure is not None
        assert attempt.failure.kind is FailureKind.DEADLINE
        assert attempt.ended_at is not None
        assert attempt.ended_at >= attempt.deadline_at
        with pytest.raises(StaleAttemptError, match="timed_out"):
            await sample.succeed(store, claim)

    async def test_watchdog_sees_a_shorter_lease_than_it_sleeps_for(
        self, store: StoreLifecycle
    ) -> None:
        await sample.begin(store, limits=Limits(timeout_s=3600.0, lease_s=3600.0))
        assert await store.claim("w2", timeout_s=0.01) == []
        claim = await sample.begin(store, limits=sample.short())
        (rollout,) = await store.wait([claim.rollout.id], timeout_s=self.patience_s)
        assert rollout.attempts[-1].status is AttemptStatus.LOST

    async def test_heartbeat_extends_the_lease_and_names_the_dead(
        self, store: StoreLifecycle
    ) -> None:
        claim, done = await sample.begin_all(store, 2)
        await sample.succeed(store, done)
        while time.time() <= claim.attempt.started_at:  # noqa: ASYNC110  for a coarse clock
            await asyncio.sleep(0)
        asked = [claim.attempt.id, done.attempt.id, "at_unknown"]
        assert await store.heartbeat(asked) == asked[1:]
        rollout = await _stored(store, claim)
        assert rollout.attempts[-1].lease_until > claim.attempt.lease_until
        assert rollout.attempts[-1].deadline_at == claim.attempt.deadline_at

    async def test_every_attempt_has_lease_and_deadline(self, store: StoreLifecycle) -> None:
        attempt = (await sample.begin(store)).attempt
        limits = Limits()
        assert attempt.lease_until == pytest.approx(attempt.started_at + limits.lease_s)
        assert attempt.deadline_at == pytest.approx(attempt.started_at + limits.timeout_s)
        for wrong in (
            Limits(timeout_s=math.inf),
            Limits(timeout_s=0),
            Limits(lease_s=math.nan),
            Limits(max_attempts=0),
        ):
            with pytest.raises(StoreError, match="limits"):
                await store.enqueue([sample.rollout(limits=wrong)])


async def _stored(store: StoreLifecycle, claim: Claim) -> Rollout:
    (rollout,) = await store.rollouts(RolloutQuery(ids=(claim.rollout.id,)))
    return rollout


async def _fail(store: StoreLifecycle, claim: Claim, kind: FailureKind) -> Attempt:
    return await store.finish(
        claim.attempt.id, status=AttemptStatus.FAILED, failure=sample.failure(kind)
    )
