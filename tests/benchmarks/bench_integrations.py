"""Cost of recording a model call and a tool call in each framework.

One agent with one tool, whose model answers immediately in the process, runs in an attempt with agl
attached, and under OpenInference's instrumentation of the framework. Both are timed at their entry
points (see `clock` and `entries`): the callbacks, the wrappers of framework functions and, with
agl, the preparation of the request. The framework's own work to call them is not included. Programs
that differ in the number of model calls, or of tools, give the cost of each.

For costs outside of the entry points, the processor time of whole runs of the program with one
model call is measured with and without recording. The difference is small compared with the run and
changes with the machine's other load. Disturbances only add time, so the minimum of a turn's runs
counts for the turn. Every figure is the median of the turns. Each round has new processes: the time
of the same code differs by up to a third between processes, depending on its place in memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
from constant_model import MORE, SCRIPTS

_PROGRAMS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "frameworks").glob("*.py"))
}
FRAMEWORKS = (*_PROGRAMS,)
"""Frameworks with a program in ``frameworks/``."""
WITHOUT_TOOLS = frozenset(
    name for name, code in _PROGRAMS.items() if "\nCALLS_TOOLS = True" in code
)
"""Frameworks whose program calls the tools itself, so that the framework does not see them."""
WATCHERS = ("agl", "openinference")
WITHOUT_PEER = frozenset(name for name, code in _PROGRAMS.items() if "def instrument(" not in code)
"""Frameworks without an instrumentation of OpenInference."""
WHOLE = "answer"
"""The program whose whole runs are compared with unrecorded runs."""
TURNS_PER_ROUND = 2
RUNS_PER_TURN = 9

Turns = dict[str, dict[str, list[float]]]
"""Microseconds, one per turn, by program or kind of work, then by side."""


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report: dict[str, Any] = {
        "machine": harness.machine(),
        "unit": "microseconds; of processor time for whole runs",
    }
    parts = {name: _framework(name, rounds) for name in FRAMEWORKS}
    for key in ("us", "errors_us", "ratios", "spans", "turns"):
        report[key] = {name: part[key] for name, part in parts.items()}
    harness.write("integrations", report)


def _framework(name: str, rounds: int) -> dict[str, Any]:
    python = harness.peer_python(name, extra=name.replace("_", "-"))
    script = (python, "framework_side.py", name)
    watchers = WATCHERS[:1] if name in WITHOUT_PEER else WATCHERS
    own: Turns = {program: {side: [] for side in watchers} for program in SCRIPTS}
    whole: dict[str, list[float]] = {side: [] for side in (*watchers, "without")}
    spans: dict[str, Any] = {}
    for _ in range(rounds):
        with harness.workers(**{side: (*script, side) for side in watchers}) as asked:
            spans = {side: worker.ask("prepare") for side, worker in asked.items()}
            for number in range(TURNS_PER_ROUND):
                _turn(asked, number, own, whole)
    kinds = _kinds(own, whole, with_tools=name not in WITHOUT_TOOLS)
    return {**_figures(name, kinds), "spans": spans, "turns": {"own": own, "whole": whole}}


def _turn(
    asked: Mapping[str, harness.Worker], number: int, own: Turns, whole: dict[str, list[float]]
) -> None:
    for program in SCRIPTS:
        for side in harness.in_turn([*whole], number):
            if side == "without" and program != WHOLE:
                continue
            worker = asked["agl" if side == "without" else side]
            watched = side != "without"
            taken = worker.ask("measure", program=program, runs=RUNS_PER_TURN, watched=watched)
            if watched:
                own[program][side].append(taken["own"])
            if program == WHOLE:
                whole[side].append(taken["whole"])


def _kinds(own: Turns, whole: dict[str, list[float]], *, with_tools: bool) -> Turns:
    """Return the microseconds of each turn, by kind of work and side."""

    def each(many: str, few: str) -> dict[str, list[float]]:
        return {side: _less(taken, own[few][side], share=MORE) for side, taken in own[many].items()}

    kinds: Turns = {"model_call": each("many_calls", "many_tools")}
    if with_tools:
        kinds["tool_call"] = each("many_tools", "one_tool")
    kinds["run"] = own[WHOLE]
    kinds["whole_run"] = {side: _less(whole[side], whole["without"]) for side in own[WHOLE]}
    return kinds


def _less(many: list[float], few: list[float], *, share: int = 1) -> list[float]:
    return [(more - less) / share for more, less in zip(many, few, strict=True)]


def _figures(name: str, kinds: Turns) -> dict[str, Any]:
    figures = {kind: harness.medians(by_side) for kind, by_side in kinds.items()}
    errors = {
        kind: {side: _error(turns) for side, turns in by_side.items()}
        for kind, by_side in kinds.items()
    }
    for kind, by_side in figures.items():
        for side, figure in by_side.items():
            harness.say(
                f"integrations {name:16s} {kind:11s} {side:14s} {figure:6.0f} +- "
                f"{errors[kind][side]:.0f} us"
            )
    return {
        "us": figures,
        "errors_us": errors,
        "ratios": {
            kind: by["agl"] / by["openinference"]
            for kind, by in figures.items()
            if "openinference" in by
        },
    }


def _error(turns: list[float]) -> float:
    """Return the median's standard error from the quartiles, as of a normal distribution."""
    low, _, high = statistics.quantiles(turns, n=4)
    return 1.25 * (high - low) / 1.35 / len(turns) ** 0.5
