"""Spans per second into the store and out of it, through its public methods.

``python tests/benchmarks/bench_store.py``; every round writes a fresh file. One span has 480 token
ids, 80 log-probabilities and 1 KB of text, and a write ten of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from agl_core.store.memory import MemoryStore
from agl_core.store.sqlite import SqliteStore
from agl_core.types import Choice, Claim, ModelCall, Rollout, Span, SpanKind, Task
from agl_core.types.ids import new_id

RESULT = Path(__file__).parents[2] / "docs" / "benchmarks" / "store.json"
SPANS_PER_WRITE = 10
ROLLOUTS = 100
VOCABULARY = 151_000


def span(claim: Claim, sequence: int, dice: random.Random) -> Span:
    names = {"rollout_id": claim.rollout.id, "attempt_id": claim.attempt.id}
    choice = Choice(
        token_ids=[dice.randrange(VOCABULARY) for _ in range(80)],
        logprobs=[-dice.random() for _ in range(80)],
        text="y" * 300,
    )
    call = ModelCall(
        id=new_id("ca"),
        agent="writer",
        messages=[{"role": "user", "content": "x" * 700}],
        prompt_token_ids=[dice.randrange(VOCABULARY) for _ in range(400)],
        choices=[choice],
        **names,
    )
    return Span(
        id=new_id("sp"),
        kind=SpanKind.LLM,
        name="chat",
        agent="writer",
        sequence=sequence,
        call_id=call.id,
        call=call,
        **names,
    )


def writes_of(claims: list[Claim], n_spans: int) -> list[list[Span]]:
    dice = random.Random(0)
    rounds = range(0, n_spans // len(claims), SPANS_PER_WRITE)
    return [
        [span(claim, start + n, dice) for n in range(SPANS_PER_WRITE)]
        for start in rounds
        for claim in claims
    ]


async def measure(store: MemoryStore | SqliteStore, writers: int, n_spans: int) -> dict[str, float]:
    await store.open()
    requests = [Rollout(id=new_id("ro"), task=Task(id="t"), run_id="r") for _ in range(ROLLOUTS)]
    await store.enqueue(requests)
    claims = await store.claim("bench", limit=ROLLOUTS)
    writes = writes_of(claims, n_spans)
    left = iter(writes)

    async def write() -> None:
        for spans in left:
            await store.add_spans(spans)

    before = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write() for _ in range(writers)))
    wall_s, cpu_s = time.perf_counter() - before[0], time.process_time() - before[1]
    written = len(writes) * SPANS_PER_WRITE
    before_read = time.perf_counter()
    read = len(await store.spans([claims[0].rollout.id]))
    read_s = time.perf_counter() - before_read
    await store.close()
    return {
        "write_spans_per_s": written / wall_s,
        "write_cpu_us_per_span": cpu_s / written * 1e6,
        "read_us_per_span": read_s / read * 1e6,
    }


def sides(directory: str) -> dict[str, Any]:
    def sqlite(synchronous: str) -> SqliteStore:
        return SqliteStore(Path(directory) / f"{new_id('db')}.db", synchronous=synchronous)  # pyright: ignore[reportArgumentType]

    return {
        "memory": MemoryStore,
        "sqlite-normal": lambda: sqlite("normal"),
        "sqlite-full": lambda: sqlite("full"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spans", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    load_before = os.getloadavg()
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.rounds):
            for side, make in sides(directory).items():
                for writers in options.writers:
                    result = asyncio.run(measure(make(), writers, options.spans))
                    found.setdefault(f"{side}, {writers} writers", []).append(result)
    medians = {
        name: {key: statistics.median(one[key] for one in results) for key in results[0]}
        for name, results in found.items()
    }
    report = {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": load_before,
        },
        "settings": {"rounds": options.rounds, "spans": options.spans},
        "medians": medians,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
