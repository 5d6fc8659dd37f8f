"""The SQLite store on disk, compared with agentlightning's in-memory store."""

from __future__ import annotations

import statistics
import sys

import harness

PEER = "agentlightning"
SETTINGS = {
    "spans": "10 per rollout, each of 480 token ids, 80 log-probabilities and 1 KB of text",
    "ours": "on disk, synchronous=normal, a transaction per rollout",
    "ingest": "spans that are there already, one call per rollout, one after the other",
    "lifecycle": "16 workers at once: enqueue, claim, make and add spans, finish, wait, query",
    "growth": "ours alone, spans without tokens: ten per call written, a random rollout read",
}
ROLLOUTS = {"ours": 300, PEER: 50}
WORKERS = 16
GROWTH_SPANS = (1_000, 1_000_000)


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {"machine": harness.machine(), "settings": SETTINGS}
    sides = {
        "ours": (sys.executable, "store_ours.py"),
        PEER: (harness.peer_python(PEER), "store_agentlightning.py"),
    }
    samples: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    processor_us: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    with harness.folder() as directory, harness.workers(**sides) as asked:
        own = {"ours": {"directory": directory}, PEER: {}}
        options = {"ingest": {}, "lifecycle": {"workers": WORKERS}}
        for number in range(rounds):
            for what, arguments in options.items():
                for side in harness.in_turn(list(sides), number):
                    rollouts = ROLLOUTS[side]
                    taken = asked[side].ask(what, rollouts=rollouts, **arguments, **own[side])
                    rate, used_us = (
                        rollouts / taken["wall_s"],
                        1e6 * taken["processor_s"] / rollouts,
                    )
                    samples[what].setdefault(side, []).append(rate)
                    processor_us[what].setdefault(side, []).append(used_us)
                    harness.say(
                        f"{what:10s} {side:15s} {rate:8.0f} rollouts/s {used_us:8.0f} us of processor"
                    )
    with harness.folder() as directory, harness.workers(ours=sides["ours"]) as asked:
        sizes = list(GROWTH_SPANS)
        grown = asked["ours"].ask("growth", sizes=sizes, rounds=2 * rounds, directory=directory)
    small, large = map(str, GROWTH_SPANS)
    harness.write(
        "store",
        report
        | {
            "unit": "rollouts per second; processor_us: microseconds of processor time per rollout, "
            "all threads; growth: seconds per span written, per rollout read",
            "samples": samples | {"growth": grown},
            "processor_us": processor_us,
            "medians": {what: harness.medians(found) for what, found in samples.items()}
            | {"growth": {what: harness.medians(found) for what, found in grown.items()}},
            "processor_medians_us": {
                what: harness.medians(found) for what, found in processor_us.items()
            },
            "ratios": {
                what: harness.ratio(found["ours"], found[PEER]) for what, found in samples.items()
            },
            "processor_ratios": {
                what: harness.ratio(found[PEER], found["ours"])
                for what, found in processor_us.items()
            },
            "growth": {
                what: statistics.median(found[large]) / statistics.median(found[small])
                for what, found in grown.items()
            },
        },
    )
