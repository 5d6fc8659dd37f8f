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

Added = dict[str, dict[str, float]]
"""Microseconds by kind of call and side."""


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report: dict[str, Any] = {
        "machine": harness.machine(),
        "unit": "microseconds of processor time",
    }
    parts = {name: _framework(name, rounds) for name in FRAMEWORKS}
    for key in ("added_us", "ratios", "spans", "medians", "samples"):
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
    added = _added(samples, with_tools=name not in WITHOUT_TOOLS)
    for kind, by_side in added.items():
        figures = ", ".join(f"{side} {figure:.0f} us" for side, figure in by_side.items())
        harness.say(f"integrations {name:16s} {kind:11s} {figures}")
    return {
        "added_us": added,
        "ratios": {kind: by["agl"] / by["openinference"] for kind, by in added.items()},
        "spans": spans,
        "medians": {program: harness.medians(by_side) for program, by_side in samples.items()},
        "samples": samples,
    }


def _added(samples: dict[str, harness.Samples], *, with_tools: bool) -> Added:
    watched = [side for side, (_, watches) in SIDES.items() if watches]
    added: Added = {"model_call": {side: _more(samples["answer"], side) for side in watched}}
    if with_tools:
        few, many = samples["one_tool"], samples["many_tools"]
        added["tool_call"] = {
            side: (_more(many, side) - _more(few, side)) / MORE_TOOLS for side in watched
        }
    return added


def _more(samples: harness.Samples, side: str) -> float:
    beside = zip(_turns(samples[side]), _turns(samples["without"]), strict=True)
    return statistics.median(min(watched) - min(alone) for watched, alone in beside)


def _turns(runs: list[float]) -> list[list[float]]:
    return [runs[first : first + RUNS_PER_TURN] for first in range(0, len(runs), RUNS_PER_TURN)]
