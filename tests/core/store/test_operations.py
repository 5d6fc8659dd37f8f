"""Random histories: the two media never differ, and no history breaks an invariant."""

from __future__ import annotations

import math
import sqlite3
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agl_core.errors import AglError
from agl_core.store import _operations, _transitions
from agl_core.store._memory import MemoryRecords
from agl_core.store._operations import ClaimRequest, FinishRequest, Operations
from agl_core.store._sql import SqlRecords, prepare
from agl_core.types import (
    AttemptStatus,
    Failure,
    FailureKind,
    Limits,
    Resources,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    Span,
    SpanKind,
    Task,
)

NUMBERS = st.integers(0, 5)
KINDS = st.sampled_from(FailureKind)
ENDS = st.sampled_from([status for status in AttemptStatus if status.final])


class Histories(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        prepare(self.connection, Path(":memory:"))
        self.media = (MemoryRecords(), SqlRecords(self.connection))
        self.patch = pytest.MonkeyPatch()
        self.final = {}

    def teardown(self):
        self.patch.undo()
        self.connection.close()

    def both(self, operation):
        """Run on both media with the same ids; returns the common result."""
        first_id = next(self.ids)
        results = []
        for records in self.media:
            ids = count(first_id * 1000)
            self.patch.setattr(_transitions, "new_id", lambda kind, ids=ids: f"{kind}{next(ids)}")
            operations = Operations(records, self.now)
            try:
                value = operation(operations)
            except AglError as error:
                value = (type(error), str(error))
            results.append((value, operations.changes))
        assert results[0] == results[1]
        return results[0][0]

    ids = count(1)

    def attempts(self):
        found = self.media[0].select(RolloutQuery())
        return [attempt for rollout in found for attempt in rollout.attempts]

    def pick(self, number):
        attempts = self.attempts()
        return attempts[number % len(attempts)] if attempts else None

    @rule(numbers=st.lists(NUMBERS, max_size=3), kinds=st.sets(KINDS), most=st.integers(1, 3))
    def enqueue(self, numbers, kinds, most):
        limits = Limits(timeout_s=20, lease_s=5, max_attempts=most, retry_on=tuple(sorted(kinds)))
        rollouts = [
            Rollout(id=f"r{n}", task=Task(id=str(n)), run_id="run", limits=limits) for n in numbers
        ]
        self.both(lambda store: store.enqueue(rollouts))

    @rule(limit=st.integers(1, 3))
    def claim(self, limit):
        claims = self.both(lambda store: store.claim(ClaimRequest("w", limit)))
        assert all(claim.attempt.status is AttemptStatus.RUNNING for claim in claims)

    @rule(limit=st.integers(1, 2), by_name=st.booleans())
    def claim_and_hand_back(self, limit, by_name):
        before = self.attempts()
        name = f"cl{next(self.ids)}"
        claims = self.both(lambda store: store.claim(ClaimRequest("w", limit, name)))
        if by_name:
            self.both(lambda store: store.hand_back_of([name]))
        else:
            self.both(lambda store: store.hand_back(claims))
        assert self.attempts() == before

    @rule(limit=st.integers(1, 2))
    def claim_again(self, limit):
        name = f"cl{next(self.ids)}"
        first = self.both(lambda store: store.claim(ClaimRequest("w", limit, name)))
        self.now += 1
        again = self.both(lambda store: store.claim(ClaimRequest("w", limit, name, repeated=True)))
        if first:
            assert [one.attempt.id for one in again] == [one.attempt.id for one in first]
            assert all(one.attempt.lease_until == self.now + 5 for one in again)
            self.both(lambda store: store.hand_back(first))
            running = [one for one in self.attempts() if one.status is AttemptStatus.RUNNING]
            assert {one.attempt.id for one in again} <= {one.id for one in running}

    @rule(number=NUMBERS)
    def heartbeat(self, number):
        attempt = self.pick(number)
        if attempt:
            gone = self.both(lambda store: store.heartbeat([attempt.id, "at_unknown"]))
            assert (attempt.id in gone) == attempt.status.final

    @rule(number=NUMBERS, status=ENDS, kind=KINDS | st.none(), n_spans=st.integers(0, 2))
    def finish(self, number, status, kind, n_spans):
        attempt = self.pick(number)
        if attempt:
            failure = None if kind is None else Failure(kind=kind, message="failed")
            spans = [span_of(attempt, n) for n in range(n_spans)]
            ending = FinishRequest(
                status=status, spans=spans, failure=failure, output={"n": number}
            )
            first = self.both(lambda store: store.finish(attempt.id, ending))
            if not isinstance(first, tuple):
                assert self.both(lambda store: store.finish(attempt.id, ending)) == first

    @rule(number=NUMBERS, names=st.lists(NUMBERS, max_size=4))
    def add_spans(self, number, names):
        attempt = self.pick(number)
        if attempt:
            spans = [span_of(attempt, name) for name in names]
            ingest, strangers = self.both(lambda store: store.add_spans(spans))
            assert ingest.accepted + ingest.duplicate + ingest.late == len(spans)
            assert strangers == []
            assert not (ingest.accepted and attempt.status.final)

    @rule(number=NUMBERS)
    def cancel(self, number):
        self.both(lambda store: store.cancel([f"r{number}"], "enough"))

    @rule(number=NUMBERS, drop=st.booleans())
    def consume(self, number, drop):
        self.both(lambda store: store.consume([f"r{number}"], drop_spans=drop))

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds):
        self.now += seconds
        due = self.both(lambda store: store.expire())
        assert due > self.now

    @rule()
    def restart(self):
        self.both(lambda store: store.requeue_running())
        assert not any(attempt.status is AttemptStatus.RUNNING for attempt in self.attempts())

    @rule()
    def restart_behind_a_server(self):
        before = self.attempts()
        self.both(lambda store: store.extend_running())
        for old, new in zip(before, self.attempts(), strict=True):
            assert (old.id, old.status) == (new.id, new.status)
            assert new.status.final or new.lease_until == self.now + 5
        self.both(lambda store: store.expire())
        assert len([one for one in self.attempts() if not one.status.final]) == len(
            [one for one in before if not one.status.final]
        )

    @rule()
    def publish(self):
        self.both(lambda store: store.publish(Resources(run_id="run")))

    @invariant()
    def media_agree(self):
        one, other = (records.select(RolloutQuery()) for records in self.media)
        assert one == other
        assert self.media[0].next_due() == self.media[1].next_due()
        assert self.media[0].latest_version() == self.media[1].latest_version()
        ids = [rollout.id for rollout in one]
        assert [_operations.spans_of(self.media[0], ids, None)] == [
            _operations.spans_of(self.media[1], ids, None)
        ]

    @invariant()
    def rollouts_are_sound(self):
        for rollout in self.media[0].select(RolloutQuery()):
            running = [one for one in rollout.attempts if not one.status.final]
            assert [one.fence for one in rollout.attempts] == list(
                range(1, len(rollout.attempts) + 1)
            )
            assert running == list(rollout.attempts[len(rollout.attempts) - len(running) :])
            assert len(running) == (rollout.status is RolloutStatus.RUNNING)
            assert all(one.sealed == one.status.final for one in rollout.attempts)
            assert all((one.ended_at is None) != one.sealed for one in rollout.attempts)
            assert self.final.get(rollout.id, rollout.status) is rollout.status
            if rollout.status.final:
                self.final[rollout.id] = rollout.status


def span_of(attempt, name):
    return Span(
        id=f"s{name}",
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.id,
        kind=SpanKind.MESSAGE,
        name="n",
        sequence=name,
    )


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_queued_and_running_records_of_a_fresh_medium_are_empty():
    records = MemoryRecords()
    assert records.queued(5) == []
    assert records.running(due_by=math.inf) == []
    assert records.next_due() == math.inf
