"""``import agl_core`` and ``import agentlightning``, minus an interpreter that imports nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import harness

PEER = "agentlightning"


def seconds(python: str, statement: str) -> float:
    """Return the time until a new interpreter has run the statement and ended."""
    begin = time.perf_counter()
    environment = {**os.environ, **harness.OFFLINE}
    subprocess.run([python, "-c", statement], check=True, env=environment)
    return time.perf_counter() - begin


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {"machine": harness.machine(), "unit": "seconds over bare Python"}
    peer = harness.peer_python(PEER)
    sides = {"ours": (sys.executable, "import agl_core"), PEER: (peer, "import agentlightning")}
    samples: harness.Samples = {side: [] for side in sides}
    for python, statement in sides.values():
        seconds(python, statement)  # warm-up: compiles files and fills the disk cache
    for number in range(rounds):
        for side in harness.in_turn(list(sides), number):
            python, statement = sides[side]
            bare = seconds(python, "pass")
            samples[side].append(seconds(python, statement) - bare)
            harness.say(f"import     {side:15s} {samples[side][-1]:8.3f} s")
    harness.write(
        "import",
        report
        | {
            "samples": samples,
            "medians": harness.medians(samples),
            "ratios": {"import": harness.ratio(samples["ours"], samples[PEER])},
        },
    )
