"""The stores that survive a crash, compared with agentlightning's in-memory store.

They are SQLite in a file, and PostgreSQL on a server of this machine.
"""

from __future__ import annotations

import sys

import harness
from database import Database, database

PEER = "agentlightning"
SETTINGS = {
    "spans": "10 per rollout, each of 480 token ids, 80 log-probabilities and 1 KB of text",
    "sqlite": "on disk, synchronous=normal, a transaction per rollout",
    "postgres": "a server on the same machine, fsync on, one process as its client",
    "ingest": "spans that are there already, one call per rollout, one after the other",
    "lifecycle": "16 workers at once: enqueue, claim, make and add spans, finish, wait, query",
    "growth": "spans without tokens: ten per call written, a random rollout read",
    "processor": "of client and server together",
    PEER: "0.3.0, in memory",
}
ROLLOUTS = {"sqlite": 300, "postgres": 300, PEER: 50}
WORKERS = 16
GROWTH_SPANS = (1_000, 1_000_000)


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    with database() as server:
        if server is not None:
            _measure(server, rounds)


def _measure(server: Database, rounds: int) -> None:
    rates: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    used_us: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    options = {"ingest": {}, "lifecycle": {"workers": WORKERS}}
    side = (sys.executable, "store_ours.py")
    peer = (harness.peer_python(PEER), "store_agentlightning.py")
    sides = {"sqlite": side, "postgres": side, PEER: peer}
    with harness.folder() as directory, harness.workers(**sides) as asked:
        where = {"sqlite": lambda: directory, "postgres": server.new}
        for number in range(rounds):
            for what, arguments in options.items():
                for name in harness.in_turn(list(sides), number):
                    place = {"directory": where[name]()} if name in where else {}
                    before, rollouts = server.processor_s(), ROLLOUTS[name]
                    taken = asked[name].ask(what, rollouts=rollouts, **place, **arguments)
                    used_s = taken["processor_s"] + (
                        server.processor_s() - before if name == "postgres" else 0.0
                    )
                    rate, each_us = rollouts / taken["wall_s"], 1e6 * used_s / rollouts
                    rates[what].setdefault(name, []).append(rate)
                    used_us[what].setdefault(name, []).append(each_us)
                    harness.say(
                        f"{what:10s} {name:15s} {rate:8.0f} rollouts/s {each_us:8.0f} us of processor"
                    )
        grown: dict[str, dict[str, dict[str, list[float]]]] = {"ingest": {}, "query": {}}
        for name, place in where.items():
            for size in GROWTH_SPANS:
                taken = asked[name].ask(
                    "growth", sizes=[size], rounds=2 * rounds, directory=place()
                )
                for what, samples in taken.items():
                    grown[what].setdefault(name, {}).update(samples)
    harness.write(
        "stores",
        {
            "machine": harness.machine(),
            "settings": SETTINGS,
            "unit": "rollouts per second; processor_us: microseconds of processor time per rollout; "
            "growth: seconds per span written, per rollout read",
            "samples": rates,
            "processor_us": used_us,
            "medians": {what: harness.medians(found) for what, found in rates.items()},
            "processor_medians_us": {
                what: harness.medians(found) for what, found in used_us.items()
            },
            "ratios": {
                what: {name: harness.ratio(found[name], found[PEER]) for name in where}
                for what, found in rates.items()
            },
            "processor_ratios": {
                what: {name: harness.ratio(found[PEER], found[name]) for name in where}
                for what, found in used_us.items()
            },
            "growth": {
                what: {name: harness.medians(sizes) for name, sizes in found.items()}
                for what, found in grown.items()
            },
            "growth_samples": grown,
        },
    )
