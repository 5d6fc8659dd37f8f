"""Text of any kind and records of any size, in every store."""

from __future__ import annotations

import pytest
from agl_testing._store_samples import begin, model_call, rollout, span

from agl_core.clocks import new_id
from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Failure,
    FailureKind,
    Ingest,
    PromptTemplate,
    Resources,
    Reward,
    RolloutQuery,
    SpanKind,
    Task,
)

AWKWARD = "NUL \x00, lone \ud83d and \udfff, escape \\d83d, both \U0001f600, line\r\n\u2028"


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


async def test_any_text_may_stand_in_any_field(store):
    asked = rollout(
        id=AWKWARD,
        run_id=AWKWARD,
        group_id=AWKWARD,
        task=Task(id=AWKWARD, input={AWKWARD: AWKWARD}, metadata={AWKWARD: [AWKWARD]}),
        metadata={AWKWARD: AWKWARD},
    )
    await store.enqueue([asked])
    await store.enqueue([asked])
    (claim,) = await store.claim(AWKWARD)
    assert claim.rollout.task == asked.task
    assert await store.heartbeat([claim.attempt.id, AWKWARD]) == [AWKWARD]
    spans = [
        span(claim, id=AWKWARD, name=AWKWARD, agent=AWKWARD, agent_run_id=AWKWARD, call_id=AWKWARD),
        span(claim, kind=SpanKind.REWARD, reward=Reward(value=1.0, channel=AWKWARD)),
        model_call(claim, name=AWKWARD, sequence=1, status="error", error=AWKWARD),
    ]
    assert await store.add_spans(spans) == Ingest(accepted=3)
    failure = Failure(
        kind=FailureKind.AGENT, message=AWKWARD, type=AWKWARD, traceback=AWKWARD * 100
    )
    ended = await store.finish(
        claim.attempt.id,
        status=AttemptStatus.FAILED,
        spans=spans,
        failure=failure,
        output={AWKWARD: AWKWARD},
    )
    assert (ended.failure, ended.output, ended.worker) == (failure, {AWKWARD: AWKWARD}, AWKWARD)
    found = await store.rollouts(RolloutQuery(run_id=AWKWARD, ids=(AWKWARD,)))
    assert found == await store.wait([AWKWARD])
    assert found[0].metadata == asked.metadata
    stored = {one.id: one for one in await store.spans([AWKWARD])}
    assert stored == {one.id: one for one in spans}
    made = Resources(run_id=AWKWARD, items={AWKWARD: PromptTemplate(template=AWKWARD)})
    assert (await store.publish(made)).items == made.items
    assert await store.publish(made) == await store.resources()
    await store.lead(AWKWARD, lease_s=60)
    await store.cancel([AWKWARD], reason=AWKWARD)
    assert await store.consume([AWKWARD]) == 1


async def test_what_is_said_of_any_id_can_be_printed(store):
    with pytest.raises(Exception, match="does not exist") as refused:
        await store.consume([AWKWARD])
    str(refused.value).encode()


async def test_a_hundred_thousand_spans_of_one_attempt(store):
    claim = await begin(store)
    spans = [span(claim, id=new_id("sp"), sequence=n) for n in range(100_000)]
    assert await store.add_spans(spans[:60_000]) == Ingest(accepted=60_000)
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=spans)
    assert await store.add_spans(spans[-1_000:]) == Ingest(duplicate=1_000)
    assert await store.spans([claim.rollout.id]) == spans


async def test_ten_megabytes_in_every_field(store):
    large = "é" * 5_000_000
    claim = await begin(store, task=Task(id="t", input=large))
    one = span(claim, name=large, attributes={"text": large})
    await store.add_spans([one])
    failure = Failure(kind=FailureKind.AGENT, message=large)
    await store.finish(claim.attempt.id, status=AttemptStatus.FAILED, failure=failure, output=large)
    (ended,) = await store.rollouts(RolloutQuery())
    assert (ended.task.input, ended.attempt.output) == (large, large)
    assert ended.attempt.failure == failure
    assert await store.spans([claim.rollout.id]) == [one]


async def test_a_rollout_that_is_named_again_has_its_spans_once(store):
    claim = await begin(store)
    await store.add_spans([span(claim)])
    between = [f"other {n}" for n in range(600)]
    found = await store.spans([claim.rollout.id, *between, claim.rollout.id])
    assert len(found) == 1
