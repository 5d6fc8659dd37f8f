"""Shared parts of the benchmarks that train: runs in processes of their own, and intervals."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness

DEMO = harness.ROOT / "examples" / "agl_demo" / "run.toml"
WORLD = harness.HERE / "writer_world.py"
STEP = 64
"""Rollouts of a step: 8 tasks, 8 rollouts each."""

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Quantiles of Student's t distribution by degrees of freedom."""


def writer_settings(name: str, seed: int, *, model: str = "demo") -> dict[str, Any]:
    """Return settings of the demo for its writer alone, which plays a model of this name or path."""
    given = tomllib.loads(DEMO.read_text(encoding="utf-8"))
    return {
        "name": name,
        "seed": seed,
        "agent": f"{WORLD}:run_agent",
        "tasks": {"train": f"{WORLD}:train_tasks"},
        "rewards": [{"name": f"{WORLD}:reward"}],
        "policies": {"writer": {"agents": ["writer"], "trainable": True, "model": model}},
        "train": {"tasks_per_step": 8, "checkpoint_every": 100, "keep_checkpoints": 5},
        **{key: given[key] for key in ("engine", "algorithm", "rollout", "eval")},
    }


def train(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Run ``agl train`` in a process of its own and return its report.

    The run's directory is ``<folder>/<settings["name"]>``.
    """
    return _agl(folder, "train", {**settings, "directory": str(folder)})


def evaluate(
    folder: Path, settings: dict[str, Any], checkpoint: str | None = None
) -> dict[str, Any]:
    """Score a checkpoint, or the settings' own models, on the tasks of ``settings["tasks"]["val"]``."""
    given = [] if checkpoint is None else ["--checkpoint", checkpoint]
    return _agl(folder, "eval", {**settings, "directory": str(folder)}, *given)


def _agl(folder: Path, command: str, settings: dict[str, Any], *more: str) -> dict[str, Any]:
    stem = folder / f"{command}-{settings['name']}"
    config, target = stem.with_suffix(".config.json"), stem.with_suffix(".report.json")
    config.write_text(json.dumps(settings), encoding="utf-8")
    line = [sys.executable, "-m", "agl_core.cli", command, str(config), "--json", str(target)]
    done = subprocess.run(
        [*line, *more], cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command} of {settings['name']} failed: {done.stdout}{done.stderr}")
    return json.loads(target.read_text(encoding="utf-8"))


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean over seeds and its 95 % interval by Student's t distribution."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": mean, "high": mean, "n": len(values)}
    half = T_975[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(values)}
