"""What the outbox of events takes of a run's lifecycle."""

from __future__ import annotations

import sys

import harness
from database import Database, database

SETTINGS = {
    "lifecycle": "as that of the benchmark stores: 16 workers, SQLite on disk or PostgreSQL",
    "events": "three events per rollout, written to the outbox, read and removed; the bus answers at once",
    "processor": "of client and server together",
}
ROLLOUTS, WORKERS = {"sqlite": 3_000, "postgres": 1_000}, 16
"""Rollouts of a run: it opens its outbox once, which takes 4 to 6 ms."""


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    with database() as server:
        _measure(server, rounds)


def _measure(server: Database | None, rounds: int) -> None:
    report = {"machine": harness.machine(), "settings": SETTINGS}
    samples: dict[str, harness.Samples] = {}
    used: dict[str, harness.Samples] = {}
    side = (sys.executable, "events_side.py")
    with harness.folder() as directory, harness.workers(ours=side) as asked:
        where = {"sqlite": lambda: directory}
        if server is not None:
            where["postgres"] = server.new
        for number in range(rounds):
            for store, place in where.items():
                for name in harness.in_turn(["without", "with"], number):
                    rollouts = ROLLOUTS[store]
                    before = server.processor_s() if server is not None else 0.0
                    taken = asked["ours"].ask(
                        "lifecycle",
                        rollouts=rollouts,
                        workers=WORKERS,
                        directory=directory,
                        place=place(),
                        events=name == "with",
                    )
                    after = server.processor_s() if server is not None else 0.0
                    rate = rollouts / taken["wall_s"]
                    each_us = 1e6 * (taken["processor_s"] + after - before) / rollouts
                    samples.setdefault(store, {}).setdefault(name, []).append(rate)
                    used.setdefault(store, {}).setdefault(name, []).append(each_us)
                    harness.say(f"{store:8s} {name:8s} {rate:8.0f}/s {each_us:8.0f} us")
    harness.write(
        "events",
        report
        | {
            "unit": "rollouts per second; processor_us: microseconds of processor time per rollout, "
            "all threads",
            "samples": samples,
            "processor_us": used,
            "medians": {store: harness.medians(each) for store, each in samples.items()},
            "processor_medians_us": {store: harness.medians(each) for store, each in used.items()},
            "ratios": {
                store: harness.ratio(each["with"], each["without"])
                for store, each in samples.items()
            },
            "processor_ratios": {
                store: harness.ratio(each["with"], each["without"]) for store, each in used.items()
            },
        },
    )
