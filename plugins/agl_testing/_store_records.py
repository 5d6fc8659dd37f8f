"""Rules of the store contract: spans, resources, durability."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.types import (
    LLM,
    AttemptStatus,
    Failure,
    FailureKind,
    Ingest,
    Limits,
    PromptTemplate,
    Resources,
    Reward,
    RolloutQuery,
    RolloutStatus,
    SpanKind,
    Task,
)
from agl_testing import _store_samples as sample
from agl_testing._guard import ContractSuite

_UNUSUAL = "NUL \x00, lone \ud83d and \udfff, escape \\d83d, both \U0001f600, line\r\n\u2028"
_HUGE = 6_000_000

Reopen = Callable[[StoreLifecycle], Awaitable[StoreLifecycle]]


class RecordRules(ContractSuite):
    """Rules on reading records: complete and in order."""

    durable: ClassVar[bool]
    patience_s: ClassVar[float]

    async def test_spans_come_in_one_stable_order(self, store: StoreLifecycle) -> None:
        second, first = reversed(await sample.begin_all(store, 2))
        parent = sample.span(first, id="m", sequence=1, start_ns=5_000_000)
        ordered = [
            sample.span(first, id="z", sequence=0, start_ns=9_000_000, end_ns=1),
            sample.span(first, id="k", sequence=1, start_ns=0, parent_id=parent.id),
            sample.span(first, id="a", sequence=1, start_ns=5_000_000),
            sample.span(first, id="b", sequence=1, start_ns=5_000_000),
            parent,
            sample.span(first, id="c", sequence=1, start_ns=5_003_000),
            sample.span(first, id="d", sequence=2, start_ns=1),
        ]
        other = sample.span(second, sequence=0)
        await store.add_spans([other, *reversed(ordered[3:])])
        await store.add_spans(list(reversed(ordered[:3])))
        ids = [second.rollout.id, first.rollout.id]
        assert await store.spans(ids) == [*ordered, other]
        await sample.succeed(store, first)
        assert await store.spans(ids) == [*ordered, other]

    async def test_spans_of_one_attempt_are_distinguished(self, store: StoreLifecycle) -> None:
        first = await sample.begin(store, limits=Limits(max_attempts=2))
        early = sample.span(first, sequence=7)
        assert await store.add_spans([early]) == Ingest(accepted=1)
        failure = Failure(kind=FailureKind.ENGINE, message="away")
        await store.finish(first.attempt.id, status=AttemptStatus.FAILED, failure=failure)
        (second,) = await store.claim("w2", timeout_s=self.patience_s)
        late = sample.span(second, sequence=1)
        await store.add_spans([late])
        assert await store.spans([first.rollout.id]) == [early, late]
        assert await store.spans([first.rollout.id], attempt_id=second.attempt.id) == [late]

    async def test_repeated_spans_are_stored_once_and_counted(self, store: StoreLifecycle) -> None:
        claim = await sample.begin(store)
        spans = [sample.model_call(claim, sequence=n) for n in range(3)]
        assert await store.add_spans(spans[:2]) == Ingest(accepted=2)
        assert await store.add_spans([*spans, spans[2]]) == Ingest(accepted=1, duplicate=3)
        await sample.succeed(store, claim, spans)
        assert await store.add_spans(spans) == Ingest(duplicate=3)
        assert await store.spans([claim.rollout.id]) == spans

    async def test_late_spans_are_refused_and_counted(self, store: StoreLifecycle) -> None:
        done, running = await sample.begin_all(store, 2)
        await sample.succeed(store, done)
        kept = sample.span(running)
        assert await store.add_spans([sample.span(done), kept]) == Ingest(accepted=1, late=1)
        assert await store.spans([done.rollout.id, running.rollout.id]) == [kept]

    async def test_rewards_are_taken_within_their_grace_until_consumed(
        self, store: StoreLifecycle
    ) -> None:
        claim = await sample.begin(store, limits=Limits(reward_grace_s=60.0))
        await sample.succeed(store, claim)
        given = Reward(value=1.0, why=f"no price: {_UNUSUAL}")
        reward = sample.span(claim, kind=SpanKind.REWARD, reward=given)
        late = sample.span(claim)
        assert await store.add_spans([reward, late]) == Ingest(accepted=1, late=1)
        assert await store.add_spans([reward, late]) == Ingest(duplicate=1, late=1)
        await store.consume([claim.rollout.id])
        after = sample.span(claim, kind=SpanKind.REWARD, reward=Reward(value=1.0))
        assert await store.add_spans([after]) == Ingest(late=1)
        assert await store.spans([claim.rollout.id]) == [reward]

    async def test_a_span_of_no_attempt_does_not_take_others_along(
        self, store: StoreLifecycle
    ) -> None:
        claim, other = await sample.begin_all(store, 2)
        kept = sample.span(claim)
        for stranger in (
            sample.span(claim, attempt_id="at_unknown"),
            sample.span(claim, rollout_id=other.rollout.id),
        ):
            with pytest.raises(StoreError, match=stranger.attempt_id):
                await store.add_spans([stranger, kept])
        assert await store.spans([claim.rollout.id, other.rollout.id]) == [kept]

    async def test_any_text_and_number_is_read_as_written(self, store: StoreLifecycle) -> None:
        task = Task(id=_UNUSUAL, input={_UNUSUAL: [_UNUSUAL, 2**80, -(2**70)]})
        claim = await sample.begin(store, task=task, group_id=_UNUSUAL)
        assert claim.rollout.task == task
        odd = sample.span(claim, name=_UNUSUAL, attributes={_UNUSUAL: _UNUSUAL, "n": 2**64})
        small = sample.span(claim, sequence=1)
        assert await store.add_spans([odd, small]) == Ingest(accepted=2)
        await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, output=_UNUSUAL)
        assert await store.spans([claim.rollout.id]) == [odd, small]
        (rollout,) = await store.rollouts(RolloutQuery(group_id=_UNUSUAL))
        assert rollout.attempts[-1].output == _UNUSUAL
        assert rollout.task == task

    async def test_values_that_are_no_json_become_their_repr(self, store: StoreLifecycle) -> None:
        claim = await sample.begin(store)
        endless: list[object] = []
        endless.append(endless)
        spans = [
            sample.span(claim, attributes={"thing": Thing()}),
            sample.span(claim, sequence=1, attributes={"endless": endless}),
        ]
        assert await store.add_spans(spans) == Ingest(accepted=2)
        await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, output=[Thing()])
        first, second = await store.spans([claim.rollout.id])
        assert first.attributes == {"thing": "Thing()"}
        assert second.attributes == {"endless": "[[...]]"}
        (rollout,) = await store.rollouts(RolloutQuery(ids=(claim.rollout.id,)))
        assert rollout.attempts[-1].output == "[Thing()]"

    async def test_one_huge_span_does_not_cost_the_batch(self, store: StoreLifecycle) -> None:
        claim = await sample.begin(store)
        spans = [sample.span(claim, sequence=n, attributes={"text": "x" * 2000}) for n in range(20)]
        spans.append(sample.span(claim, sequence=20, attributes={"text": "y" * _HUGE}))
        assert await store.add_spans(spans) == Ingest(accepted=21)
        assert await store.spans([claim.rollout.id]) == spans

    async def test_records_share_nothing_with_their_users(self, store: StoreLifecycle) -> None:
        task = Task(id="t", input={"words": ["one"]})
        claim = await sample.begin(store, task=task)
        for words in (task.input["words"], claim.rollout.task.input["words"]):
            words.append("two")
        (rollout,) = await store.rollouts(RolloutQuery(ids=(claim.rollout.id,)))
        assert rollout.task.input == {"words": ["one"]}

    async def test_resources_are_numbered_and_immutable(self, store: StoreLifecycle) -> None:
        assert await store.resources() is None
        prompt = PromptTemplate(template="Write {what}")
        first = await store.publish(Resources(run_id="run", items={"prompt": prompt}))
        llm = LLM(model="m", policy="trained", version=2)
        second = await store.publish(Resources(run_id="run", step=1, items={"llm": llm}))
        assert (first.version, second.version) == (1, 2)
        assert first.created_at > 0
        assert await store.resources() == second
        assert await store.resources(1) == first
        with pytest.raises(StoreError, match="3"):
            await store.resources(3)

    async def test_publishing_the_latest_content_again_makes_no_version(
        self, store: StoreLifecycle
    ) -> None:
        prompt = PromptTemplate(template="Write {what}")
        made = Resources(run_id="run", step=1, items={"prompt": prompt}, created_at=1.0)
        first = await store.publish(made)
        again = Resources(run_id="run", step=1, items={"prompt": prompt}, version=7)
        assert await store.publish(again) == first
        other = await store.publish(Resources(run_id="run", step=2, items={"prompt": prompt}))
        assert (await store.publish(made)).version == other.version + 1 == 3

    async def test_restart_keeps_what_the_store_says_it_keeps(
        self, store: StoreLifecycle, reopen: Reopen
    ) -> None:
        claim = await sample.begin(store)
        spans = [sample.model_call(claim)]
        await sample.succeed(store, claim, spans)
        published = await store.publish(Resources(run_id="run"))
        ids = RolloutQuery(ids=(claim.rollout.id,))
        before = await store.rollouts(ids)
        again = await reopen(store)
        assert await again.rollouts(ids) == (before if self.durable else [])
        assert await again.spans([claim.rollout.id]) == (spans if self.durable else [])
        assert await again.resources() == (published if self.durable else None)

    async def test_restart_queues_running_attempts_under_a_new_fence(
        self, store: StoreLifecycle, reopen: Reopen
    ) -> None:
        claim = await sample.begin(store, limits=Limits(max_attempts=1))
        early = sample.span(claim)
        await store.add_spans([early])
        again = await reopen(store)
        claims = await again.claim("w2", timeout_s=self.patience_s if self.durable else 0)
        fences = [(one.rollout.id, one.attempt.fence) for one in claims]
        assert fences == ([(claim.rollout.id, 2)] if self.durable else [])
        with pytest.raises(StoreError, match=claim.attempt.id):
            await sample.succeed(again, claim)
        if self.durable:
            (rollout,) = await again.rollouts(RolloutQuery())
            assert rollout.status is RolloutStatus.RUNNING
            assert rollout.attempts[0].status is AttemptStatus.LOST
            assert await again.spans([claim.rollout.id]) == [early]

    @pytest.mark.parametrize("waits_s", [0.01, 0])
    async def test_close_sends_waiters_away_and_refuses_more(
        self, store: StoreLifecycle, waits_s: float
    ) -> None:
        claim = await sample.begin(store)
        waiting = [
            asyncio.ensure_future(store.claim("w2")),
            asyncio.ensure_future(store.wait([claim.rollout.id])),
        ]
        # After one iteration of the loop, both are still reading.
        await (asyncio.wait(waiting, timeout=waits_s) if waits_s else asyncio.sleep(0))
        await store.close()
        await store.close()
        done, late = await asyncio.wait(waiting, timeout=self.patience_s)
        for task in late:
            task.cancel()
        assert not late
        for task in done:
            with pytest.raises(StoreError, match="closed"):
                task.result()
        with pytest.raises(StoreError, match="open"):
            await store.enqueue([sample.rollout()])


class Thing:
    """A value that is not JSON."""

    def __repr__(self) -> str:
        return "Thing()"
