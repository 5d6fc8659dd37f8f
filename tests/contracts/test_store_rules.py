"""Every rule of the store contract catches a store that breaks it."""

from __future__ import annotations

import asyncio
import inspect
import math
from itertools import product

import msgspec
import pytest
from agl_testing.store_contract import StoreContract
from msgspec.structs import replace

from agl_core.errors import AglError, StaleAttemptError, StoreError
from agl_core.store._memory import MemoryStore
from agl_core.store._operations import Changes
from agl_core.types import Attempt, Claim, Ingest, RolloutStatus

FAILURES = (
    AssertionError,
    AglError,
    LookupError,
    TypeError,
    ValueError,
    asyncio.TimeoutError,
    pytest.fail.Exception,
)

RULES = sorted(name for name in dir(StoreContract) if name.startswith("test_"))


IMPATIENT_S = 0.3
"""For broken stores, which never do what is waited for."""


class AcceptsOtherContent(MemoryStore):
    async def enqueue(self, rollouts):
        try:
            return await super().enqueue(rollouts)
        except StoreError:
            return list(rollouts)


class HandsOutNewestFirst(MemoryStore):
    async def claim(self, worker, *, limit=1, timeout_s=None):
        return (await super().claim(worker, limit=limit, timeout_s=timeout_s))[::-1]


class WakesNobody(MemoryStore):
    def announce(self, changes):
        super().announce(Changes(final=changes.final, due_at=changes.due_at))


class HandsOutTwice(MemoryStore):
    last: list[Claim]

    async def claim(self, worker, *, limit=1, timeout_s=None):
        claims = await super().claim(worker, limit=limit, timeout_s=timeout_s)
        claims, self.last = [*claims, *getattr(self, "last", [])], claims
        return claims


class ForgetsClaimsOfTheCancelled(MemoryStore):
    async def claim(self, worker, *, limit=1, timeout_s=None):
        claims = await super().claim(worker, limit=limit, timeout_s=timeout_s)
        await asyncio.sleep(0)
        return claims


class RepeatsPages(MemoryStore):
    async def rollouts(self, query):
        return await super().rollouts(replace(query, after_id=None))


class WaitsForNothing(MemoryStore):
    async def wait(self, rollout_ids, *, timeout_s=None):
        known = await self._BaseStore__existing(rollout_ids)
        return [known[one] for one in rollout_ids]


class CancelsOnlyTheQueued(MemoryStore):
    async def cancel(self, rollout_ids, *, reason):
        known = await self._BaseStore__existing(rollout_ids)
        queued = [one for one in rollout_ids if known[one].status is RolloutStatus.QUEUED]
        await super().cancel(queued, reason=reason)
        return list((await self._BaseStore__existing(rollout_ids)).values())


class ConsumesAgain(MemoryStore):
    async def consume(self, rollout_ids):
        await super().consume(rollout_ids)
        return len(rollout_ids)


class KeepsAllSpans(MemoryStore):
    def __init__(self, **_):
        super().__init__(retention="keep")


class SwallowsStaleResults(MemoryStore):
    async def finish(self, attempt_id, **ending):
        try:
            return await super().finish(attempt_id, **ending)
        except StaleAttemptError:
            return Attempt(id=attempt_id, rollout_id="", fence=1, worker="")


class RefusesRepetition(MemoryStore):
    async def finish(self, attempt_id, **ending):
        seen = self.__dict__.setdefault("seen", set())
        if attempt_id in seen:
            raise StaleAttemptError(f"Attempt {attempt_id} ended")
        seen.add(attempt_id)
        return await super().finish(attempt_id, **ending)


class FinishesInTwoWrites(MemoryStore):
    async def finish(self, attempt_id, *, spans=(), **ending):
        await self.add_spans(spans)
        return await super().finish(attempt_id, spans=spans, **ending)


class RetriesNothing(MemoryStore):
    async def enqueue(self, rollouts):
        return await super().enqueue(
            [replace(one, limits=replace(one.limits, max_attempts=1)) for one in rollouts]
        )


class RetriesEverything(MemoryStore):
    async def enqueue(self, rollouts):
        every = tuple(type(rollouts[0].limits.retry_on[0]))
        return await super().enqueue(
            [replace(one, limits=replace(one.limits, retry_on=every)) for one in rollouts]
        )


class WatchesNothing(MemoryStore):
    async def sweep(self):
        return math.inf


class OversleepsShortLeases(MemoryStore):
    def announce(self, changes):
        soon = changes.due_at < self.clock.now() + 60
        super().announce(replace_due(changes, math.inf) if soon else changes)


def replace_due(changes, due_at):
    return Changes(queued=changes.queued, final=changes.final, due_at=due_at)


class IgnoresHeartbeats(MemoryStore):
    async def heartbeat(self, attempt_ids):
        return []


class LetsAttemptsRunForEver(AcceptsOtherContent):
    pass


class OrdersByTime(MemoryStore):
    async def spans(self, rollout_ids, *, attempt_id=None):
        spans = await super().spans(rollout_ids, attempt_id=attempt_id)
        return sorted(spans, key=lambda span: span.start_ns)


class MixesAttempts(MemoryStore):
    async def spans(self, rollout_ids, *, attempt_id=None):
        return await super().spans(rollout_ids)


class AcceptsEverySpan(MemoryStore):
    async def add_spans(self, spans):
        await super().add_spans(spans)
        return Ingest(accepted=len(spans))


class HasNoGrace(MemoryStore):
    async def enqueue(self, rollouts):
        return await super().enqueue(
            [replace(one, limits=replace(one.limits, reward_grace_s=0.0)) for one in rollouts]
        )


class DropsBatchesWithStrangers(MemoryStore):
    async def add_spans(self, spans):
        for span in spans:
            owner = self._records.owner(span.attempt_id)
            if owner is None or owner.rollout_id != span.rollout_id:
                raise StoreError(f"Attempt {span.attempt_id} is unknown")
        return await super().add_spans(spans)


class ReplacesWhatUtf8Lacks(MemoryStore):
    async def add_spans(self, spans):
        clean = [replace(span, name=span.name.encode(errors="replace").decode()) for span in spans]
        return await super().add_spans(clean)


class TakesJsonOnly(MemoryStore):
    async def add_spans(self, spans):
        msgspec.msgpack.encode(spans)
        return await super().add_spans(spans)


class DropsLargeBatches(MemoryStore):
    async def add_spans(self, spans):
        if sum(len(str(span)) for span in spans) > 4_000_000:
            return Ingest()
        return await super().add_spans(spans)


class SharesItsRecords(MemoryStore):
    async def rollouts(self, query):
        known = self.__dict__.setdefault("known", {})
        found = await super().rollouts(query)
        return [replace(one, task=known.get(one.id, one.task)) for one in found]

    async def enqueue(self, rollouts):
        self.__dict__.setdefault("known", {}).update({one.id: one.task for one in rollouts})
        return await super().enqueue(rollouts)


class NumbersNothing(MemoryStore):
    async def publish(self, resources):
        await super().publish(resources)
        return resources


class NumbersEveryRequest(MemoryStore):
    async def publish(self, resources):
        published = await super().publish(resources)
        if published.created_at != resources.created_at:
            self._records.add_resources(replace(published, version=published.version + 1))
        return await self.resources()


class HasManyTrainers(MemoryStore):
    async def lead(self, instance, *, lease_s):
        del instance, lease_s


class NeverLapses(MemoryStore):
    async def lead(self, instance, *, lease_s):
        await super().lead(instance, lease_s=max(lease_s, 600.0) if lease_s else 0)


class LeavesWaitersAlone(MemoryStore):
    async def close(self):
        self._BaseStore__claimers.close = self._BaseStore__finals.close = lambda _: None
        await super().close()


class PromisesToLast(MemoryStore):
    durable = True


BROKEN = [
    (AcceptsOtherContent, "test_enqueue_is_idempotent_and_refuses_other_content"),
    (HandsOutNewestFirst, "test_claims_come_oldest_first_each_with_a_fresh_fence"),
    (WakesNobody, "test_claim_is_woken_by_work_and_gives_up_in_time"),
    (HandsOutTwice, "test_interleaved_workers_never_share_a_rollout"),
    (ForgetsClaimsOfTheCancelled, "test_cancelled_claim_loses_no_rollout"),
    (RepeatsPages, "test_pages_show_every_rollout_once_by_ascending_id"),
    (WaitsForNothing, "test_wait_is_pushed_once_the_last_rollout_is_final"),
    (WaitsForNothing, "test_wait_gives_what_is_final_when_time_is_up"),
    (CancelsOnlyTheQueued, "test_cancel_ends_what_is_not_final"),
    (ConsumesAgain, "test_consume_counts_final_rollouts_once"),
    (KeepsAllSpans, "test_retention_drops_spans_of_consumed_rollouts"),
    (SwallowsStaleResults, "test_late_result_of_a_replaced_attempt_is_refused"),
    (RefusesRepetition, "test_repeated_finish_is_answered_with_the_stored_attempt"),
    (RefusesRepetition, "test_repeated_failure_is_answered_while_its_retry_runs"),
    (SwallowsStaleResults, "test_final_states_are_final"),
    (SwallowsStaleResults, "test_cancelled_rollout_never_succeeds"),
    (FinishesInTwoWrites, "test_refused_finish_writes_nothing"),
    (RetriesNothing, "test_failures_are_retried_by_their_kind"),
    (RetriesEverything, "test_failures_are_retried_by_their_kind"),
    (WatchesNothing, "test_watchdog_ends_attempts_without_heartbeat"),
    (WatchesNothing, "test_watchdog_ends_attempts_past_their_deadline"),
    (OversleepsShortLeases, "test_watchdog_sees_a_shorter_lease_than_it_sleeps_for"),
    (IgnoresHeartbeats, "test_heartbeat_extends_the_lease_and_names_the_dead"),
    (LetsAttemptsRunForEver, "test_every_attempt_has_lease_and_deadline"),
    (OrdersByTime, "test_spans_come_in_one_stable_order"),
    (MixesAttempts, "test_spans_of_one_attempt_are_distinguished"),
    (AcceptsEverySpan, "test_repeated_spans_are_stored_once_and_counted"),
    (AcceptsEverySpan, "test_late_spans_are_refused_and_counted"),
    (HasNoGrace, "test_rewards_are_taken_within_their_grace_until_consumed"),
    (DropsBatchesWithStrangers, "test_a_span_of_no_attempt_does_not_take_others_along"),
    (ReplacesWhatUtf8Lacks, "test_any_text_and_number_is_read_as_written"),
    (TakesJsonOnly, "test_values_that_are_no_json_become_their_repr"),
    (DropsLargeBatches, "test_one_huge_span_does_not_cost_the_batch"),
    (SharesItsRecords, "test_records_share_nothing_with_their_users"),
    (NumbersNothing, "test_resources_are_numbered_and_immutable"),
    (NumbersEveryRequest, "test_publishing_the_latest_content_again_makes_no_version"),
    (HasManyTrainers, "test_a_second_trainer_is_refused_until_the_first_gives_back"),
    (NeverLapses, "test_a_lead_that_lapsed_can_be_taken"),
    (HasManyTrainers, "test_a_leader_needs_a_name_and_an_end"),
    (PromisesToLast, "test_restart_keeps_the_lead_as_long_as_the_records"),
    (PromisesToLast, "test_restart_keeps_what_the_store_says_it_keeps"),
    (PromisesToLast, "test_restart_queues_running_attempts_under_a_new_fence"),
    (LeavesWaitersAlone, "test_close_sends_waiters_away_and_refuses_more"),
]


async def check(rule, store_class, *, patience_s=StoreContract.patience_s):
    """Run one rule as pytest would, for each of its parameters."""
    contract = StoreContract()
    contract.patience_s = patience_s
    contract.durable = getattr(store_class, "durable", False)
    method = getattr(contract, rule)
    marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    for values in product(*(mark.args[1] for mark in marks)):
        arguments = dict(zip((mark.args[0] for mark in marks), values, strict=True))
        await check_once(method, store_class, arguments)


async def check_once(method, store_class, arguments):
    stores = {
        "store": store_class(),
        "dropping_store": store_class(retention="drop_spans"),
        "again": store_class(),
    }

    async def reopen(store):
        await store.close()
        return stores["again"]

    fixtures = {**stores, "reopen": reopen, **arguments}
    for store in stores.values():
        await store.open()
    try:
        wanted = inspect.signature(method).parameters
        await method(**{name: fixtures[name] for name in wanted})
    finally:
        for store in stores.values():
            await store.close()


@pytest.mark.parametrize("rule", RULES)
async def test_a_sound_store_keeps_the_rule(rule):
    await check(rule, MemoryStore)


@pytest.mark.parametrize(("store_class", "rule"), BROKEN)
async def test_the_rule_catches_a_broken_store(store_class, rule):
    with pytest.raises(FAILURES):
        await check(rule, store_class, patience_s=IMPATIENT_S)


def test_every_rule_has_a_store_that_breaks_it():
    assert sorted({rule for _, rule in BROKEN}) == RULES
