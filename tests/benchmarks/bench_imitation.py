"""SFT then GRPO against GRPO alone, on the demo's world: rollouts until GRPO's last score.

GRPO alone takes 20 steps of 64 rollouts from the demo's model; its held-out score after the last
one is the target of its seed. The other arm first imitates a few conversations with right answers,
which cost no rollout, and then takes the same steps. Both are scored before the first step and
after every second one; an arm has reached the target in the first evaluation with at least its
score.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
from agl_demo import world
from learning import demo_settings, interval, train

STEPS, TASKS_PER_STEP, GROUP_SIZE, EVAL_EVERY = 20, 8, 8, 2
ROLLOUTS = STEPS * TASKS_PER_STEP * GROUP_SIZE
CONVERSATIONS, SFT_STEPS = 16, 4
ARMS = ("grpo", "sft_grpo")
SETTINGS = {
    "world": "examples/agl_demo: its program, model, training tasks and settings; the first 100 of "
    "its held-out tasks",
    "grpo": f"{STEPS} steps of {TASKS_PER_STEP} tasks, {GROUP_SIZE} rollouts each, lr 3e-4",
    "sft": f"{SFT_STEPS} steps of 8 of {CONVERSATIONS} conversations, lr 3e-4, no rollouts",
    "evaluations": f"before the first step and after every {EVAL_EVERY} steps",
    "target": "held-out score of grpo alone after its last step, for each seed",
}


def run(*, rounds: int) -> None:
    """Measure ``rounds`` seeds and write the report."""
    report: dict[str, Any] = {"machine": harness.machine(), "settings": SETTINGS, "seeds": []}
    with harness.folder() as directory:
        for seed in range(rounds):
            report["seeds"].append(_seed(Path(directory), seed))
            harness.say(f"imitation  seed {seed}  {json.dumps(report['seeds'][-1]['reached'])}")
    harness.write("imitation", {**report, **summary(report["seeds"])})


def _seed(folder: Path, seed: int) -> dict[str, Any]:
    """Run both arms with one seed."""
    curves = {arm: curve(train(folder, settings(folder, arm, seed))) for arm in ARMS}
    target = curves["grpo"][-1]["score"]
    reached = {arm: rollouts_until(target, found) for arm, found in curves.items()}
    return {"seed": seed, "target": target, "reached": reached, "curves": curves}


def settings(folder: Path, arm: str, seed: int) -> dict[str, Any]:
    """Return an arm's configuration."""
    made = demo_settings()
    made |= {"name": f"{arm}-{seed}", "seed": seed}
    made["tasks"]["val"] = "agl_demo.training:few_held_out_tasks"
    made["train"] = {
        "tasks_per_step": TASKS_PER_STEP,
        "eval_every": EVAL_EVERY,
        "checkpoint_every": STEPS,
    }
    phases: list[dict[str, Any]] = [{"algorithm": "grpo", "steps": STEPS}]
    if arm == "sft_grpo":
        data = folder / "conversations.jsonl"
        data.write_text(conversations(CONVERSATIONS), encoding="utf-8")
        phases.insert(0, {"algorithm": "sft", "steps": SFT_STEPS, "data": [str(data)]})
    return {**made, "phases": phases}


def conversations(count: int) -> str:
    """Return right answers to training questions, one conversation per line."""
    lines: list[str] = []
    for task in world.tasks("train", count, seed=1):
        result = world.tool_result(task.item, task.price, task.unit)
        messages = [
            {"role": "system", "content": world.WRITER_SYSTEM},
            {"role": "user", "content": world.writer_request(task.question, result)},
            {
                "role": "assistant",
                "content": f"The {task.item} costs {task.price} {task.unit}.",
            },
        ]
        lines.append(json.dumps({"agent": "writer", "messages": messages}) + "\n")
    return "".join(lines)


def curve(report: dict[str, Any]) -> list[dict[str, float]]:
    """Return the held-out score after each number of rollouts; the last one of equal numbers."""
    used = {0: 0}
    for step in report["steps"]:
        used[step["step"]] = used[step["step"] - 1] + step["rollouts"]
    scores = {used[each["step"]]: each["score"]["mean"] for each in report["evaluations"]}
    return [{"rollouts": rollouts, "score": score} for rollouts, score in scores.items()]


def rollouts_until(target: float, found: list[dict[str, float]]) -> float | None:
    """Return the rollouts of the first evaluation that reaches the target; None if none does."""
    return next((each["rollouts"] for each in found if each["score"] >= target), None)


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds with intervals. A target that was not reached counts as all rollouts."""
    reached = {
        arm: [ROLLOUTS if each["reached"][arm] is None else each["reached"][arm] for each in seeds]
        for arm in ARMS
    }
    saved = [alone - both for alone, both in zip(reached["grpo"], reached["sft_grpo"], strict=True)]
    return {
        "rollouts": ROLLOUTS,
        "reached": {arm: interval(values) for arm, values in reached.items()},
        "not_reached": {arm: sum(each["reached"][arm] is None for each in seeds) for arm in ARMS},
        "saved": interval(saved),
        "target": interval([each["target"] for each in seeds]),
    }
