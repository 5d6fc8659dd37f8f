"""The in-memory store of agentlightning, measured in a separate interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

import spans
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import Attempt, OtelResource, Span, TraceStatus
from worker import serve

_numbers = count(1)


def span(attempt: Attempt, sequence: int, tokens: spans.Tokens) -> Span:
    attributes: dict[str, Any] = {
        "agent": "writer",
        "gen_ai.prompt.0.content": spans.PROMPT,
        "gen_ai.completion.0.content": spans.ANSWER,
        "prompt_token_ids": tokens.prompt,
        "response_token_ids": tokens.sampled,
        "logprobs": tokens.logprobs,
    }
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=sequence,
        trace_id=f"{1:032x}",
        span_id=f"{next(_numbers):016x}",
        parent_id=None,
        name="chat",
        status=TraceStatus(status_code="OK"),
        attributes=attributes,
        events=[],
        links=[],
        start_time=1.0,
        end_time=2.0,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def spans_of(attempt: Attempt, tokens: Iterator[spans.Tokens]) -> list[Span]:
    return [span(attempt, number + 1, next(tokens)) for number in range(spans.ROLLOUT_SPANS)]


async def ingest(rollouts: int) -> dict[str, float]:
    """Return the time to record the spans of `rollouts` rollouts, one call per rollout."""
    store, tokens = InMemoryLightningStore(), iter(spans.tokens(rollouts * spans.ROLLOUT_SPANS))
    attempts = [(await store.start_rollout({"question": "q"})).attempt for _ in range(rollouts)]
    writes = [spans_of(attempt, tokens) for attempt in attempts]
    begin = spans.Stopwatch()
    for write in writes:
        await store.add_many_spans(write)
    taken = begin.read()
    read = await store.query_spans(attempts[-1].rollout_id)
    assert len(read) == spans.ROLLOUT_SPANS
    return taken


async def lifecycle(rollouts: int, workers: int) -> dict[str, float]:
    """Return the time of `rollouts` rollouts from enqueueing to reading their spans back."""
    store, left = InMemoryLightningStore(), iter(range(rollouts))
    tokens = cycle(spans.tokens(10 * spans.ROLLOUT_SPANS))

    async def work() -> None:
        for _ in left:
            await store.enqueue_rollout({"question": "q"}, mode="train")
            claimed = await store.dequeue_rollout("bench")
            assert claimed is not None
            await store.add_many_spans(spans_of(claimed.attempt, tokens))
            await store.update_attempt(
                claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
            )
            (ended,) = await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=60.0)
            read = await store.query_spans(ended.rollout_id)
            assert len(read) == spans.ROLLOUT_SPANS

    begin = spans.Stopwatch()
    await asyncio.gather(*(work() for _ in range(workers)))
    return begin.read()


if __name__ == "__main__":
    serve(ingest=ingest, lifecycle=lifecycle)
