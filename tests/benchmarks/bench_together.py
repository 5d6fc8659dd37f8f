"""Prompts and weights in turn against each alone, at equal rollouts, on the demo's world.

The arms use the same number of rollouts: for prompts, for steps of GRPO, or for both in turn. Each
arm's best pair of prompt and weights by validation is scored on held-out tasks that chose nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
from learning import STEP, WORLD, evaluate, interval, train, writer_settings

ARMS: dict[str, list[dict[str, Any]]] = {
    "prompts": [{"optimizer": "apo", "rollouts": 640, "rounds": 6}],
    "weights": [{"algorithm": "grpo", "steps": 10}],
    "both": [
        {"optimizer": "apo", "rollouts": 176, "rounds": 2},
        {"algorithm": "grpo", "steps": 5},
        {"optimizer": "apo", "rollouts": 96, "rounds": 1},
    ],
}
"""Phases of each arm. With the evaluations at the start and after each phase, of 24 rollouts each,
every arm may use 688 rollouts."""
APO = {"gradient_batch": 1, "val_batch": 8}
SETTINGS = {
    "world": "the demo's writer, with right results of the lookup and the prompt 'You are the "
    "writer.'. It plays a copy of the demo's model that `agl_demo.teach` taught to obey two rules "
    "where the prompt states them",
    "prompts": "`apo`, 640 rollouts",
    "weights": f"GRPO, 10 steps of {STEP} rollouts, lr 3e-4",
    "both": f"`apo`, 176 rollouts; GRPO, 5 steps of {STEP} rollouts; `apo`, 96 rollouts",
    "editor": "a script that adds or leaves out one of eight sentences at random; two are the rules",
    "reward": "in the arms, half of it is the share of right parts",
    "score": "share of 200 held-out tasks whose answer is right in all parts, at temperature 1",
}


def run(*, rounds: int) -> None:
    """Measure ``rounds`` seeds and write the report after each."""
    report: dict[str, Any] = {"machine": harness.machine(), "settings": SETTINGS, "seeds": []}
    with harness.folder() as directory:
        folder = Path(directory)
        model = taught(folder)
        report["before"] = scored(folder, settings("weights", 0, model))
        for seed in range(rounds):
            found = {arm: measured(folder, arm, seed, model) for arm in ARMS}
            report["seeds"].append({"seed": seed, **found})
            means = {arm: round(each["score"]["mean"], 3) for arm, each in found.items()}
            harness.say(f"together   seed {seed}  {json.dumps(means)}")
            harness.write("together", {**report, **summary(report["seeds"])})


def taught(folder: Path) -> str:
    """Teach the model, which takes minutes, and return its directory."""
    directory = folder / "obedient"
    line = [sys.executable, "-m", "agl_demo.teach", "--out", str(directory), "--count", "50"]
    harness.say("together   teaching the model")
    subprocess.run(line, check=True, capture_output=True)
    return str(directory)


def measured(folder: Path, arm: str, seed: int, model: str) -> dict[str, Any]:
    """Run one arm with one seed, and score its best pair of prompt and weights."""
    made = settings(arm, seed, model)
    report = train(folder, made)
    evaluations = [each["score"] for each in report["evaluations"]]
    return {
        "score": scored(folder, made, checkpoint=report["best"]),
        "validation": [each["mean"] for each in evaluations],
        "rollouts": report["rollouts"] + sum(each["n"] for each in evaluations),
        "prompt": report["prompts"]["writer"]["text"],
        "best": Path(report["best"]).name,
        "wall_s": report["wall_s"],
        "lost": report["lost"],
    }


def scored(folder: Path, made: dict[str, Any], *, checkpoint: str | None = None) -> dict[str, Any]:
    """Return the score of a checkpoint, or of what an arm begins with, on the held-out tasks."""
    tasks = {**made["tasks"], "val": f"{WORLD}:held_out_tasks"}
    rewards = [{"name": f"{WORLD}:reward"}]
    return evaluate(folder, {**made, "tasks": tasks, "rewards": rewards}, checkpoint)["score"]


def settings(arm: str, seed: int, model: str) -> dict[str, Any]:
    """Return an arm's configuration."""
    made = writer_settings(f"{arm}-{seed}", seed, model=model)
    made["agent"] = f"{WORLD}:run_ruled_agent"
    made["tasks"]["val"] = f"{WORLD}:val_tasks"
    made["rewards"] = [{"name": f"{WORLD}:graded"}]
    made["prompts"] = {"writer": {"agents": ["writer"], "captured": True}}
    made["optimizers"] = {"apo": {**APO, "editor": {"function": f"{WORLD}:editor"}}}
    if arm == "prompts":
        del made["algorithm"]
    return {**made, "phases": ARMS[arm]}


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds with intervals, and how much higher both in turn score."""
    scores = {arm: [each[arm]["score"]["mean"] for each in seeds] for arm in ARMS}
    return {
        "rollouts": {arm: interval([each[arm]["rollouts"] for each in seeds]) for arm in ARMS},
        "scores": {arm: interval(values) for arm, values in scores.items()},
        "gain": {
            arm: interval(
                [both - alone for both, alone in zip(scores["both"], values, strict=True)]
            )
            for arm, values in scores.items()
            if arm != "both"
        },
    }
