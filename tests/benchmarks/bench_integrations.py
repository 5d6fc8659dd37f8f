"""What recording adds to a model call and to a tool call of each framework.

One agent with one tool, whose model answers in the process at once, is run alone, in an attempt with
agl attached, and under OpenInference's instrumentation of the framework. An answer without a tool
tells what a model call costs, the agent's own span included; an answer that calls many tools more
than another, what each of these costs. The framework itself takes far longer than either, so the
program alone is measured beside, in each turn. What disturbs a run only adds to it: the least of a
turn's runs stands for the turn, and what is added is the median of the turns' differences.
"""

from __future__ import annotations

import statistics
from typing import Any

import harness
from constant_model import MORE_TOOLS, SCRIPTS

FRAMEWORKS = ("openai", "langchain", "autogen", "openai_agents", "agent_framework", "crewai")
WITHOUT_TOOLS = frozenset({"openai"})
"""There the program calls the tools itself, and nobody sees it."""

SIDES = {
    "without": ("agl", False),
    "agl": ("agl", True),
    "openinference": ("openinference", True),
}
"""By side: the process that is asked, and whether it watches."""
TURNS_PER_ROUND = 6
RUNS_PER_TURN = 4


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report: dict[str, Any] = {
        "machine": harness.machine(),
        "unit": "microseconds of processor time",
    }
    parts = {name: _framework(name, rounds) for name in FRAMEWORKS}
    for key in ("added_us", "errors_us", "ratios", "spans", "medians", "samples"):
        report[key] = {name: part[key] for name, part in parts.items()}
    harness.write("integrations", report)


def _framework(name: str, rounds: int) -> dict[str, Any]:
    python = harness.peer_python(name, extra=name.replace("_", "-"))
    script = (python, "framework_side.py", name)
    samples = {program: {side: list[float]() for side in SIDES} for program in SCRIPTS}
    with harness.workers(agl=(*script, "agl"), openinference=(*script, "openinference")) as asked:
        spans = {watcher: worker.ask("prepare") for watcher, worker in asked.items()}
        for number in range(rounds * TURNS_PER_ROUND):
            for program in SCRIPTS:
                for side in harness.in_turn(list(SIDES), number):
                    watcher, watched = SIDES[side]
                    samples[program][side] += asked[watcher].ask(
                        "measure", program=program, runs=RUNS_PER_TURN, watched=watched
                    )
    return {**_figures(name, samples), "spans": spans, "samples": samples}


def _figures(name: str, samples: dict[str, harness.Samples]) -> dict[str, Any]:
    costs = _costs(samples, with_tools=name not in WITHOUT_TOOLS)
    added = {kind: harness.medians(by_side) for kind, by_side in costs.items()}
    errors = {
        kind: {side: _error(turns) for side, turns in by_side.items()}
        for kind, by_side in costs.items()
    }
    for kind, by_side in added.items():
        for side, figure in by_side.items():
            error = errors[kind][side]
            harness.say(
                f"integrations {name:16s} {kind:11s} {side:14s} {figure:6.0f} +- {error:.0f} us"
            )
    return {
        "added_us": added,
        "errors_us": errors,
        "ratios": {kind: by["agl"] / by["openinference"] for kind, by in added.items()},
        "medians": {program: harness.medians(by_side) for program, by_side in samples.items()},
    }


def _costs(samples: dict[str, harness.Samples], *, with_tools: bool) -> dict[str, harness.Samples]:
    """Microseconds that a call costs in each turn, by kind of call and side."""
    watched = [side for side, (_, watches) in SIDES.items() if watches]
    costs = {"model_call": {side: _more(samples["answer"], side) for side in watched}}
    if with_tools:
        few, many = samples["one_tool"], samples["many_tools"]
        costs["tool_call"] = {
            side: [
                (most - least) / MORE_TOOLS
                for least, most in zip(_more(few, side), _more(many, side), strict=True)
            ]
            for side in watched
        }
    return costs


def _more(samples: harness.Samples, side: str) -> list[float]:
    beside = zip(_turns(samples[side]), _turns(samples["without"]), strict=True)
    return [min(watched) - min(alone) for watched, alone in beside]


def _error(turns: list[float]) -> float:
    """Standard error of the median, from the quartiles: a normal distribution's has 1.25 sigma."""
    low, _, high = statistics.quantiles(turns, n=4)
    return 1.25 * (high - low) / 1.35 / len(turns) ** 0.5


def _turns(runs: list[float]) -> list[list[float]]:
    return [runs[first : first + RUNS_PER_TURN] for first in range(0, len(runs), RUNS_PER_TURN)]
