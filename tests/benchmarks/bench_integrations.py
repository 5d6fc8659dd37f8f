"""What recording takes of a model call and of a tool call of each framework.

One agent with one tool, whose model answers in the process at once, is run in an attempt with agl
attached, and under OpenInference's instrumentation of the framework. Both are timed where they are
entered (see `clock` and `entries`): that is the callbacks, what is put around functions of the
framework and, with agl, the preparation of the request, and not what the framework itself does in
order to call them. Programs that differ in the number of model calls, or of tools, tell what each of
these takes.

What is left out shows in the processor time of whole runs, with and without, of the program with one
model call, which is measured beside; the difference is small beside the run and moves with all else
that the machine does. What disturbs a run only adds to it, so the least of a turn's runs stands for
the turn. Every figure is the median of the turns. Each round has new processes: what the same code
takes differs by as much as a third from one process to the next, by where its memory lies.
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
"""Those with a program in ``frameworks/``."""
WITHOUT_TOOLS = frozenset(
    name for name, code in _PROGRAMS.items() if "\nCALLS_TOOLS = True" in code
)
"""There the program calls the tools itself, and no framework sees it."""
WATCHERS = ("agl", "openinference")
WITHOUT_PEER = frozenset(name for name, code in _PROGRAMS.items() if "def instrument(" not in code)
"""OpenInference has no instrumentation of it."""
WHOLE = "answer"
"""The program whose whole runs are compared with those that nobody watches."""
TURNS_PER_ROUND = 2
RUNS_PER_TURN = 9

Turns = dict[str, dict[str, list[float]]]
"""By program or kind of work, then by side: microseconds, one for each turn."""


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
    """Microseconds of each turn, by kind of work and side."""

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
    """Standard error of the median, from the quartiles: a normal distribution's has 1.25 sigma."""
    low, _, high = statistics.quantiles(turns, n=4)
    return 1.25 * (high - low) / 1.35 / len(turns) ** 0.5
