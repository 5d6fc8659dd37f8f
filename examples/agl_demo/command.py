"""``agl demo``: trains one of two agents of a LangGraph program and shows the result."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from agl_core.app import App, displayed, load_plugins
from agl_core.cli.group import debug_option, json_option, set_option
from agl_core.cli.output import progress_stream, write_json
from agl_core.config import RunConfig, load_config
from agl_core.errors import ConfigError, TrainingError
from agl_core.types import Estimate, Evaluation, Report
from agl_demo.smollm2 import fetch
from agl_demo.training import model_path
from agl_demo.transcript import transcripts

WRITERS = {"tiny": "the tiny model that ships", "smollm2": "SmolLM2-135M-Instruct with LoRA"}
"""Values of ``--model`` and their descriptions."""
_MOST_THREADS = 8


@click.command(short_help="Train the writer of a two-agent LangGraph program.")
@click.option(
    "--model",
    "writer",
    type=click.Choice(tuple(WRITERS)),
    metavar="NAME",
    default="tiny",
    help="What the writer plays: tiny, which ships with the demo, or smollm2, which is fetched.",
)
@set_option
@json_option
@debug_option
def command(*, writer: str, overrides: tuple[str, ...], json_file: str | None) -> None:
    """Train the writer of a two-agent LangGraph program on this machine, and show it.

    Offline, on a CPU. It took 129 s on two cores; with --model smollm2, once the weights had been
    fetched, 296 s. Held-out tasks are scored before and, in a fresh process that loads the saved
    weights, after. The planner's weights do not change.
    """
    stream = progress_stream(json_file)
    console = Console(file=stream)
    weights = fetch(lambda text: console.print(text, soft_wrap=True)) if writer != "tiny" else None
    started = time.perf_counter()
    config = demo_config(overrides, weights=weights)
    _check(config)
    console.print(
        f"Two agents: the planner looks a price up, the writer says it. Training: writer, "
        f"{WRITERS[writer]}.",
        soft_wrap=True,
    )
    plugins = load_plugins(config.plugins)
    with displayed(stream, plugins) as displays:
        report = asyncio.run(App(config, observers=displays, plugins=plugins).train())
    if report.best is None:
        raise TrainingError("The demo took no step: set train.steps to at least 1")
    directory = Path(report.directory)
    after = evaluate_afresh(directory, directory / "checkpoints" / Path(report.best).name)
    wall_s = time.perf_counter() - started
    figures = {"model": writer, **demo_figures(report, after, wall_s=wall_s)}
    _show(console, report, figures)
    if json_file is not None:
        write_json(figures, json_file)


def demo_config(overrides: tuple[str, ...] = (), *, weights: Path | None = None) -> RunConfig:
    """Return the demo's configuration with a unique name for the run.

    Args:
        overrides: Further settings, in the form of ``--set``.
        weights: Directory of SmolLM2 for the writer; None for the shipped model.
    """
    defaults = [f"model={json.dumps(model_path())}"]
    if weights is not None:
        defaults += [
            f"policies.writer.model={json.dumps(str(weights))}",
            f"engine.threads={_threads()}",
        ]
    kind = "demo" if weights is None else "demo-smollm2"
    defaults.append(time.strftime(f"name={kind}-%Y%m%d-%H%M%S"))
    file = "run.toml" if weights is None else "smollm2.toml"
    return load_config(str(files("agl_demo") / file), (*defaults, *overrides))


def _threads() -> int:
    """Return all cores, as the agents are idle meanwhile; more than the limit do not help."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST_THREADS)


def _check(config: RunConfig) -> None:
    if config.tasks.val is None:
        raise ConfigError(
            "tasks.val is empty, but the demo shows scores on held-out tasks: leave it set, or "
            "train without them by `agl train`"
        )


def evaluate_afresh(run: Path, checkpoint: Path) -> Evaluation:
    """Evaluate a checkpoint on the held-out tasks in a new process.

    Raises:
        TrainingError: the process failed; its output is in the message.
    """
    target = run / "after.json"
    line = [sys.executable, "-m", "agl_core.cli", "eval", str(run / "config.json")]
    line += ["--checkpoint", str(checkpoint), "--json", str(target)]
    done = subprocess.run(line, capture_output=True, text=True, encoding="utf-8", check=False)  # noqa: S603
    if done.returncode != 0:
        raise TrainingError(f"Evaluating {checkpoint} in a new process failed: {done.stderr}")
    return msgspec.json.decode(target.read_bytes(), type=Evaluation)


def demo_figures(report: Report, after: Evaluation, *, wall_s: float) -> dict[str, Any]:
    """Return the figures that ``--json`` writes."""
    before = report.evaluations[0]
    return {
        "agents": {"writer": {"before": _plain(before.score), "after": _plain(after.score)}},
        "policies": report.policies,
        "reward_curve": [step.reward for step in report.steps],
        "failed": {"before": before.failed, "after": after.failed},
        "wall_s": round(wall_s, 1),
        "calls": report.calls,
        "lost": report.lost,
        "directory": report.directory,
        "best": report.best,
    }


def _plain(estimate: Estimate) -> dict[str, float]:
    return msgspec.to_builtins(estimate)


def _show(console: Console, report: Report, figures: dict[str, Any]) -> None:
    writer, planner = figures["agents"]["writer"], report.policies["planner"]
    console.rule("one held-out task, before and after")
    for text in transcripts(report):
        console.print(text, markup=False, highlight=False)
    console.rule("held-out tasks answered right, with 95 % intervals")
    for label in ("before", "after"):
        score = writer[label]
        console.print(
            f"writer {label:>6}  {score['mean']:.3f}  [{score['low']:.3f}, {score['high']:.3f}]"
            f"  of {score['n']} tasks",
            highlight=False,
        )
    same = planner["sha256_before"] == planner["sha256_after"]
    console.print(f"planner weights {'unchanged' if same else 'CHANGED'}: sha256 ", end="")
    console.print(planner["sha256_after"][:16], highlight=False)
    console.print(f"{report.calls} model calls; lost by cause: {report.lost or 'nothing'}")
    weights = Path(report.best or "") / "policies" / "writer"
    console.print(f"The trained writer lies in {weights}", soft_wrap=True, highlight=False)
    console.print("Serve it to any OpenAI client:", highlight=False)
    console.print(f"  agl serve {weights}", soft_wrap=True, highlight=False)
    console.print(f"Look inside the run:  agl trace {report.directory} --limit 1", highlight=False)
    console.print(f"Wall time {figures['wall_s']:.0f} s", highlight=False)
