"""What encryption takes of a store's work."""

from __future__ import annotations

import sys

import harness
from agl_encryption._options import FIELDS
from database import Database, database

SETTINGS = {
    "ingest": "as that of the benchmark stores: spans that are there already",
    "lifecycle": "as that of the benchmark stores: 16 workers, SQLite on disk or PostgreSQL",
    "all": "every field is encrypted",
    "without_tokens": "all but the token ids and log-probabilities",
    "processor": "of client and server together",
}
ROLLOUTS, WORKERS = {"sqlite": 100, "postgres": 300}, 16
SIDES = {"none": [], "all": list(FIELDS), "without_tokens": [f for f in FIELDS if f != "tokens"]}


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    with database() as server:
        _measure(server, rounds)


def _measure(server: Database | None, rounds: int) -> None:
    report = {"machine": harness.machine(), "settings": SETTINGS}
    rates: dict[str, harness.Samples] = {}
    used: dict[str, harness.Samples] = {}
    options = {"ingest": {}, "lifecycle": {"workers": WORKERS}}
    side = (sys.executable, "store_ours.py")
    with harness.folder() as directory, harness.workers(ours=side) as asked:
        where = {"sqlite": lambda: directory}
        if server is not None:
            where["postgres"] = server.new
        for number in range(rounds):
            for store, what in ((store, what) for store in where for what in options):
                for name in harness.in_turn(list(SIDES), number):
                    rollouts, key = ROLLOUTS[store], f"{store} {what}"
                    before = server.processor_s() if server is not None else 0.0
                    taken = asked["ours"].ask(
                        what,
                        rollouts=rollouts,
                        directory=where[store](),
                        fields=SIDES[name],
                        **options[what],
                    )
                    after = server.processor_s() if server is not None else 0.0
                    rate = rollouts / taken["wall_s"]
                    each_us = 1e6 * (taken["processor_s"] + after - before) / rollouts
                    rates.setdefault(key, {}).setdefault(name, []).append(rate)
                    used.setdefault(key, {}).setdefault(name, []).append(each_us)
                    harness.say(f"{key:18s} {name:15s} {rate:8.0f}/s {each_us:8.0f} us")
    others = [name for name in SIDES if name != "none"]
    harness.write(
        "encryption",
        report
        | {
            "unit": "rollouts per second; processor_us: microseconds of processor time per rollout, "
            "all threads",
            "samples": rates,
            "processor_us": used,
            "medians": {what: harness.medians(found) for what, found in rates.items()},
            "processor_medians_us": {what: harness.medians(found) for what, found in used.items()},
            "ratios": {
                what: {name: harness.ratio(found[name], found["none"]) for name in others}
                for what, found in rates.items()
            },
            "processor_ratios": {
                what: {name: harness.ratio(found[name], found["none"]) for name in others}
                for what, found in used.items()
            },
        },
    )
