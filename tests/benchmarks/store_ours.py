"""A store of ours, measured through its public methods: SQLite in a directory, or a database's address."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path

import spans
from worker import serve

from agl_core.clocks import new_id
from agl_core.interfaces import StoreLifecycle
from agl_core.store import BaseStore, SqliteStore
from agl_core.types import AttemptStatus, Choice, Claim, ModelCall, Rollout, Span, SpanKind, Task

_FILL_ROLLOUTS = 1000
"""Rollouts per transaction when a store is only filled."""


def span(claim: Claim, sequence: int, call: ModelCall | None) -> Span:
    return Span(
        id=new_id("span"),
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        kind=SpanKind.LLM,
        name="chat",
        agent="writer",
        sequence=sequence,
        start_ns=1,
        end_ns=2,
        status="ok",
        call_id=call.id if call else None,
        call=call,
    )


def model_call(claim: Claim, tokens: spans.Tokens) -> ModelCall:
    return ModelCall(
        id=new_id("call"),
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        agent="writer",
        messages=[{"role": "user", "content": spans.PROMPT}],
        prompt_token_ids=tokens.prompt,
        choices=[Choice(token_ids=tokens.sampled, logprobs=tokens.logprobs, text=spans.ANSWER)],
        complete=True,
    )


def spans_of(claim: Claim, tokens: Iterator[spans.Tokens]) -> list[Span]:
    return [
        span(claim, number + 1, model_call(claim, next(tokens)))
        for number in range(spans.ROLLOUT_SPANS)
    ]


def small_spans_of(claim: Claim) -> list[Span]:
    return [span(claim, number + 1, None) for number in range(spans.ROLLOUT_SPANS)]


def rollout() -> Rollout:
    return Rollout(id=new_id("ro"), task=Task(id="t", input={"question": "q"}), run_id="bench")


async def claimed(store: StoreLifecycle, rollouts: int) -> list[Claim]:
    await store.enqueue([rollout() for _ in range(rollouts)])
    return await store.claim("bench", limit=rollouts)


@asynccontextmanager
async def opened(directory: str, fields: Sequence[str] = ()) -> AsyncGenerator[StoreLifecycle]:
    """Open a new store, which encrypts these fields."""
    async with _opened(directory) as store:
        yield _encrypted(store, fields) if fields else store


def _encrypted(store: BaseStore, fields: Sequence[str]) -> StoreLifecycle:
    from agl_encryption import EncryptionOptions
    from agl_encryption._keys import ENV_KEY, new_key
    from agl_encryption._layer import make_layer

    os.environ.setdefault(ENV_KEY, new_key())
    return make_layer(EncryptionOptions.model_validate({"fields": fields}), store)


@asynccontextmanager
async def _opened(directory: str) -> AsyncGenerator[BaseStore]:
    if directory.startswith("postgresql://"):
        async with _database(directory) as store:
            yield store
        return
    path = Path(directory) / f"{new_id('db')}.db"
    store = SqliteStore(path, synchronous="normal")
    await store.open()
    try:
        yield store
    finally:
        await store.close()
        _delete(path)


@asynccontextmanager
async def _database(url: str) -> AsyncGenerator[BaseStore]:
    from agl_postgres import PostgresOptions, PostgresStore

    store = PostgresStore(PostgresOptions(url=url))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


async def ingest(rollouts: int, directory: str, fields: Sequence[str] = ()) -> dict[str, float]:
    """Return the time to record the spans of `rollouts` rollouts, one transaction per rollout."""
    tokens = iter(spans.tokens(rollouts * spans.ROLLOUT_SPANS))
    async with opened(directory, fields) as store:
        claims = await claimed(store, rollouts)
        writes = [spans_of(claim, tokens) for claim in claims]
        begin = spans.Stopwatch()
        for write in writes:
            await store.add_spans(write)
        taken = begin.read()
        read = await store.spans([claims[-1].rollout.id])
        assert len(read) == spans.ROLLOUT_SPANS
    return taken


async def lifecycle(
    rollouts: int, workers: int, directory: str, fields: Sequence[str] = ()
) -> dict[str, float]:
    """Return the time of `rollouts` rollouts from enqueueing to reading their spans back."""
    left, tokens = iter(range(rollouts)), cycle(spans.tokens(10 * spans.ROLLOUT_SPANS))
    async with opened(directory, fields) as store:

        async def work() -> None:
            for _ in left:
                await store.enqueue([rollout()])
                (claim,) = await store.claim("bench")
                await store.add_spans(spans_of(claim, tokens))
                await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
                (ended,) = await store.wait([claim.rollout.id], timeout_s=60.0)
                read = await store.spans([ended.id])
                assert len(read) == spans.ROLLOUT_SPANS

        begin = spans.Stopwatch()
        await asyncio.gather(*(work() for _ in range(workers)))
        return begin.read()


async def growth(
    sizes: list[int], rounds: int, directory: str
) -> dict[str, dict[str, list[float]]]:
    """Return seconds per span written and per rollout read, in turn in stores of these sizes."""
    found: dict[str, dict[str, list[float]]] = {"ingest": {}, "query": {}}
    async with AsyncExitStack() as stack:
        stores = {size: await stack.enter_async_context(opened(directory)) for size in sizes}
        known = {size: await _filled(store, size) for size, store in stores.items()}
        for _ in range(rounds):
            for size, store in stores.items():
                found["ingest"].setdefault(str(size), []).append(await _written(store))
                found["query"].setdefault(str(size), []).append(await _read(store, known[size]))
    return found


async def _filled(store: StoreLifecycle, size: int) -> list[str]:
    """Fill a store and return the ids of its rollouts."""
    ids: list[str] = []
    while (missing := size // spans.ROLLOUT_SPANS - len(ids)) > 0:
        claims = await claimed(store, min(missing, _FILL_ROLLOUTS))
        await store.add_spans([one for claim in claims for one in small_spans_of(claim)])
        ids += [claim.rollout.id for claim in claims]
    return ids


async def _written(store: StoreLifecycle, rollouts: int = 100) -> float:
    writes = [small_spans_of(claim) for claim in await claimed(store, rollouts)]
    begin = time.perf_counter()
    for write in writes:
        await store.add_spans(write)
    return (time.perf_counter() - begin) / (rollouts * spans.ROLLOUT_SPANS)


async def _read(store: StoreLifecycle, ids: list[str], rollouts: int = 100) -> float:
    chosen = random.sample(ids, min(rollouts, len(ids)))
    begin = time.perf_counter()
    for rollout_id in chosen:
        assert len(await store.spans([rollout_id])) == spans.ROLLOUT_SPANS
    return (time.perf_counter() - begin) / len(chosen)


if __name__ == "__main__":
    serve(ingest=ingest, lifecycle=lifecycle, growth=growth)
