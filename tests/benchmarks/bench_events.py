"""What the outbox of events takes of a run's lifecycle."""

from __future__ import annotations

import sys

import harness

SETTINGS = {
    "lifecycle": "as that of the benchmark store: 16 workers, SQLite on disk",
    "events": "three events per rollout, written to the outbox, read and removed; the bus answers at once",
}
ROLLOUTS, WORKERS = 300, 16


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {"machine": harness.machine(), "settings": SETTINGS}
    samples: harness.Samples = {}
    used: harness.Samples = {}
    side = (sys.executable, "events_side.py")
    with harness.folder() as directory, harness.workers(ours=side) as asked:
        for number in range(rounds):
            for name in harness.in_turn(["without", "with"], number):
                taken = asked["ours"].ask(
                    "lifecycle",
                    rollouts=ROLLOUTS,
                    workers=WORKERS,
                    directory=directory,
                    events=name == "with",
                )
                samples.setdefault(name, []).append(ROLLOUTS / taken["wall_s"])
                used.setdefault(name, []).append(1e6 * taken["processor_s"] / ROLLOUTS)
                harness.say(f"{name:8s} {samples[name][-1]:8.0f}/s {used[name][-1]:8.0f} us")
    harness.write(
        "events",
        report
        | {
            "unit": "rollouts per second; processor_us: microseconds of processor time per rollout, "
            "all threads",
            "samples": samples,
            "processor_us": used,
            "medians": harness.medians(samples),
            "processor_medians_us": harness.medians(used),
            "ratio": harness.ratio(samples["with"], samples["without"]),
            "processor_ratio": harness.ratio(used["with"], used["without"]),
        },
    )
