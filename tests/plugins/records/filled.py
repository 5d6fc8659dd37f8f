"""A store with records of every kind, for tests of copies."""

from agl_testing._store_samples import begin, failure, model_call, rollout, span, succeed

from agl_core.types import AttemptStatus, FailureKind, Limits, PromptTemplate, Resources

ODD = "\0 \ud800 \U0001f600"


async def fill(store):
    """Write rollouts in every status, with retries, odd text and resources; return their ids."""
    await store.publish(
        Resources(run_id="run", items={"writer": PromptTemplate(template=f"Write. {ODD}")})
    )
    await store.publish(
        Resources(run_id="run", items={"writer": PromptTemplate(template="Write well.")})
    )
    await store.publish(Resources(run_id="other", items={}))
    good = await begin(store, metadata={"odd": ODD, "big": 10**30}, resources_version=2)
    notes = [span(good, sequence=9 - number, name=f"{number}{ODD}") for number in range(5)]
    await store.add_spans(notes[:2])
    await succeed(store, good, [model_call(good), *notes[2:]])
    await store.consume([good.rollout.id])
    bad = await begin(store, limits=Limits(max_attempts=2, retry_on=(FailureKind.AGENT,)))
    for _ in range(2):
        agent = failure(FailureKind.AGENT)
        await store.finish(bad.attempt.id, status=AttemptStatus.FAILED, failure=agent)
        bad = next(iter(await store.claim("w2", timeout_s=0.0)), bad)
    cancelled = await begin(store, run_id="other", resources_version=3)
    await store.add_spans([span(cancelled, name="before")])
    await store.cancel([cancelled.rollout.id], reason="no more")
    running = await begin(store, id=f"ro_{ODD}")
    await store.add_spans([span(running)])
    queued = [rollout(id=f"ro_{name}") for name in "cab"]
    await store.enqueue(queued)
    return [good, bad, cancelled, running, *queued]
