"""Rules of the store contract: queueing, claiming, waiting, consuming."""

from __future__ import annotations

import asyncio
from random import Random
from typing import ClassVar

import pytest

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.types import (
    AttemptStatus,
    Claim,
    FailureKind,
    Limits,
    RolloutQuery,
    RolloutStatus,
)
from agl_testing import _store_samples as sample
from agl_testing._guard import ContractSuite


class QueueRules(ContractSuite):
    """Rules on a rollout's way from enqueueing over a worker to consumption."""

    durable: ClassVar[bool]
    """Whether records outlive the process."""
    patience_s: ClassVar[float] = 60.0
    """Seconds to wait for what a store does immediately; only an upper bound for the tests."""

    async def test_enqueue_is_idempotent_and_refuses_other_content(
        self, store: StoreLifecycle
    ) -> None:
        limits = Limits(timeout_s=60, lease_s=30)
        one = sample.rollout(metadata={"b": 1, "a": [1, 2]}, limits=limits)
        (first,) = await store.enqueue([one])
        assert first.status is RolloutStatus.QUEUED
        assert first.created_at > 0
        claim = (await store.claim("w1", timeout_s=0))[0]
        (again,) = await store.enqueue([one])
        assert again.status is RolloutStatus.RUNNING
        assert [attempt.id for attempt in again.attempts] == [claim.attempt.id]
        assert await store.claim("w2", timeout_s=0) == []
        fresh, other = sample.rollout(), sample.rollout(id=one.id, seed=1)
        with pytest.raises(StoreError, match=one.id):
            await store.enqueue([fresh, other])
        assert await store.rollouts(RolloutQuery(ids=(fresh.id,))) == []

    async def test_claims_come_oldest_first_each_with_a_fresh_fence(
        self, store: StoreLifecycle
    ) -> None:
        queued = [sample.rollout() for _ in range(5)]
        await store.enqueue(queued)
        claims = await store.claim("w1", limit=3)
        claims += await store.claim("w2", limit=3)
        assert [claim.rollout.id for claim in claims] == [one.id for one in queued]
        assert [claim.attempt.worker for claim in claims] == ["w1"] * 3 + ["w2"] * 2
        for claim in claims:
            attempt = claim.attempt
            assert (attempt.fence, attempt.status) == (1, AttemptStatus.RUNNING)
            assert claim.rollout.attempt == attempt
            assert claim.rollout.status is RolloutStatus.RUNNING

    async def test_claim_is_woken_by_work_and_gives_up_in_time(self, store: StoreLifecycle) -> None:
        assert await store.claim("w1", timeout_s=0.01) == []
        waiting = [asyncio.ensure_future(store.claim(f"w{n}")) for n in range(3)]
        await asyncio.wait(waiting, timeout=0.01)
        assert not any(task.done() for task in waiting)
        await store.enqueue([sample.rollout() for _ in range(3)])
        woken = await asyncio.wait_for(asyncio.gather(*waiting), self.patience_s)
        assert len({claims[0].rollout.id for claims in woken}) == 3

    async def test_interleaved_workers_never_share_a_rollout(self, store: StoreLifecycle) -> None:
        limits = Limits(max_attempts=4, retry_on=(FailureKind.ENGINE,))
        queued = [sample.rollout(limits=limits) for _ in range(40)]
        held: set[str] = set()
        handed_out: list[Claim] = []

        async def work(number: int) -> None:
            dice = Random(number)  # noqa: S311  a reproducible interleaving
            while claims := await store.claim(f"w{number}", limit=dice.randint(1, 3), timeout_s=0):
                for claim in claims:
                    assert claim.rollout.id not in held
                    held.add(claim.rollout.id)
                    handed_out.append(claim)
                await asyncio.sleep(0)
                for claim in claims:
                    held.discard(claim.rollout.id)
                    await _end(store, claim, fails=dice.random() < 0.4)

        await store.enqueue(queued)
        workers = [work(number) for number in range(8)]
        await asyncio.wait_for(asyncio.gather(*workers), self.patience_s)
        ids = [claim.attempt.id for claim in handed_out]
        assert len(set(ids)) == len(ids)
        for rollout in await store.rollouts(RolloutQuery()):
            assert rollout.status.final
            fences = [attempt.fence for attempt in rollout.attempts]
            assert fences == list(range(1, len(fences) + 1))

    async def test_cancelled_claim_loses_no_rollout(self, store: StoreLifecycle) -> None:
        await store.enqueue([sample.rollout() for _ in range(20)])
        got: list[Claim] = []
        for turn in range(20):
            task = asyncio.ensure_future(store.claim("w1"))
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            got += [] if isinstance(result, BaseException) else result
        while len(got) < 20:
            claims = await store.claim("w2", timeout_s=self.patience_s)
            assert claims, f"{20 - len(got)} rollouts were never claimed"
            got += claims
        assert len({claim.rollout.id for claim in got}) == 20

    async def test_pages_show_every_rollout_once_by_ascending_id(
        self, store: StoreLifecycle
    ) -> None:
        queued = [sample.rollout(group_id=f"g{n % 2}", run_id=f"r{n % 3}") for n in range(12)]
        await store.enqueue(list(reversed(queued)))
        seen: list[str] = []
        for size in (5, 5, 2, 0):
            after = seen[-1] if seen else None
            page = await store.rollouts(RolloutQuery(after_id=after, limit=5))
            assert len(page) == size
            seen += [rollout.id for rollout in page]
        assert seen == sorted(one.id for one in queued)
        some = await store.rollouts(RolloutQuery(group_id="g1", run_id="r2"))
        assert [one.id for one in some] == [queued[5].id, queued[11].id]
        ids = tuple(one.id for one in (queued[7], queued[3]))
        assert [one.id for one in await store.rollouts(RolloutQuery(ids=ids))] == sorted(ids)
        assert await store.rollouts(RolloutQuery(statuses=(RolloutStatus.FAILED,))) == []
        assert await store.rollouts(RolloutQuery(mode="val")) == []

    async def test_wait_is_pushed_once_the_last_rollout_is_final(
        self, store: StoreLifecycle
    ) -> None:
        claims = await sample.begin_all(store, 2)
        ids = [claim.rollout.id for claim in reversed(claims)]
        waiting = asyncio.ensure_future(store.wait(ids))
        await sample.succeed(store, claims[0])
        await asyncio.wait({waiting}, timeout=0.01)
        assert not waiting.done()
        await sample.succeed(store, claims[1])
        final = await asyncio.wait_for(waiting, self.patience_s)
        assert [rollout.id for rollout in final] == ids
        assert all(rollout.attempts[-1].sealed for rollout in final)
        assert await asyncio.wait_for(store.wait(ids), self.patience_s) == final

    async def test_wait_gives_what_is_final_when_time_is_up(self, store: StoreLifecycle) -> None:
        first, second = await sample.begin_all(store, 2)
        await sample.succeed(store, second)
        ids = [first.rollout.id, second.rollout.id]
        final = await store.wait(ids, timeout_s=0.01)
        assert [rollout.id for rollout in final] == [second.rollout.id]
        with pytest.raises(StoreError, match="ro_unknown"):
            await store.wait(["ro_unknown"], timeout_s=0.01)

    async def test_cancel_ends_what_is_not_final(self, store: StoreLifecycle) -> None:
        running, done = await sample.begin_all(store, 2)
        await sample.succeed(store, done)
        (queued,) = await store.enqueue([sample.rollout()])
        ids = [queued.id, running.rollout.id, done.rollout.id]
        waiting = asyncio.ensure_future(store.wait(ids))
        cancelled = await store.cancel(ids, reason="not needed")
        assert [rollout.status for rollout in cancelled] == [
            RolloutStatus.CANCELLED,
            RolloutStatus.CANCELLED,
            RolloutStatus.SUCCEEDED,
        ]
        attempt = cancelled[1].attempts[-1]
        assert attempt.status is AttemptStatus.CANCELLED
        assert attempt.failure is not None
        assert (attempt.failure.kind, attempt.failure.message) == ("cancelled", "not needed")
        assert await asyncio.wait_for(waiting, self.patience_s) == cancelled
        assert await store.claim("w2", timeout_s=0) == []
        with pytest.raises(StoreError, match="ro_unknown"):
            await store.cancel(["ro_unknown"], reason="no such")

    async def test_consume_counts_final_rollouts_once(self, store: StoreLifecycle) -> None:
        done, running = await sample.begin_all(store, 2)
        await sample.succeed(store, done, [sample.span(done)])
        with pytest.raises(StoreError, match=running.rollout.id):
            await store.consume([done.rollout.id, running.rollout.id])
        assert not (await store.rollouts(RolloutQuery(ids=(done.rollout.id,))))[0].consumed
        assert await store.consume([done.rollout.id]) == 1
        assert await store.consume([done.rollout.id]) == 0
        assert (await store.rollouts(RolloutQuery(ids=(done.rollout.id,))))[0].consumed
        assert len(await store.spans([done.rollout.id])) == 1

    async def test_retention_drops_spans_of_consumed_rollouts(
        self, dropping_store: StoreLifecycle
    ) -> None:
        store = dropping_store
        used, kept = await sample.begin_all(store, 2)
        for claim in (used, kept):
            await sample.succeed(store, claim, [sample.span(claim)])
        await store.consume([used.rollout.id])
        left = await store.spans([used.rollout.id, kept.rollout.id])
        assert [span.rollout_id for span in left] == [kept.rollout.id]
        (rollout,) = await store.rollouts(RolloutQuery(ids=(used.rollout.id,)))
        assert rollout.attempts[-1].status is AttemptStatus.SUCCEEDED
        ingest = await store.add_spans([sample.span(used)])
        assert (ingest.accepted, ingest.late) == (0, 1)


async def _end(store: StoreLifecycle, claim: Claim, *, fails: bool) -> None:
    if fails:
        await store.finish(
            claim.attempt.id,
            status=AttemptStatus.FAILED,
            failure=sample.failure(FailureKind.ENGINE),
        )
    else:
        await sample.succeed(store, claim)
