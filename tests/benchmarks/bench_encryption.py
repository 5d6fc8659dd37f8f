"""What encryption takes of a store's work."""

from __future__ import annotations

import sys

import harness
from agl_encryption._options import FIELDS

SETTINGS = {
    "ingest": "as that of the benchmark store: spans that are there already, SQLite on disk",
    "lifecycle": "as that of the benchmark store: 16 workers, SQLite on disk",
    "all": "every field is encrypted",
    "without_tokens": "all but the token ids and log-probabilities",
}
ROLLOUTS, WORKERS = 100, 16
SIDES = {"none": [], "all": list(FIELDS), "without_tokens": [f for f in FIELDS if f != "tokens"]}


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {"machine": harness.machine(), "settings": SETTINGS}
    rates: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    used: dict[str, harness.Samples] = {"ingest": {}, "lifecycle": {}}
    options = {"ingest": {}, "lifecycle": {"workers": WORKERS}}
    side = (sys.executable, "store_ours.py")
    with harness.folder() as directory, harness.workers(ours=side) as asked:
        for number in range(rounds):
            for what, arguments in options.items():
                for name in harness.in_turn(list(SIDES), number):
                    taken = asked["ours"].ask(
                        what,
                        rollouts=ROLLOUTS,
                        directory=directory,
                        fields=SIDES[name],
                        **arguments,
                    )
                    rate, each_us = (
                        ROLLOUTS / taken["wall_s"],
                        1e6 * taken["processor_s"] / ROLLOUTS,
                    )
                    rates[what].setdefault(name, []).append(rate)
                    used[what].setdefault(name, []).append(each_us)
                    harness.say(f"{what:10s} {name:15s} {rate:8.0f}/s {each_us:8.0f} us")
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
