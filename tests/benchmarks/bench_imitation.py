"""SFT then GRPO against GRPO alone, on the demo's world: rollouts until GRPO's last score.

A step's 64 rollouts are of tasks that no earlier step has used, so their mean reward is a score of
the weights before the step. The score of three steps is the mean of theirs. GRPO alone takes 20
steps from the demo's model; its score of the last three is the target of its seed. The other arm
first imitates a few conversations with right answers, which cost no rollout, and then takes the same
steps. An arm has reached the target after the first three steps whose score is at least as high.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import harness
from agl_demo import world
from learning import STEP, WORLD, interval, train, writer_settings
from writer_world import other_tasks

STEPS, WINDOW = 20, 3
ROLLOUTS = STEPS * STEP
CONVERSATIONS, SFT_STEPS = 16, 4
ARMS = ("grpo", "sft_grpo")
SETTINGS = {
    "world": "the demo's writer, model, tasks and settings, with right results of the lookup",
    "grpo": f"{STEPS} steps of {STEP} rollouts, lr 3e-4",
    "sft": f"{SFT_STEPS} steps of 8 of {CONVERSATIONS} conversations about other items, lr 3e-4",
    "score": f"mean reward of {WINDOW} steps, whose tasks are new to the weights",
    "held_out": "100 tasks about other items, before the first step and after the last",
}


def run(*, rounds: int) -> None:
    """Measure ``rounds`` seeds and write the report after each."""
    report: dict[str, Any] = {"machine": harness.machine(), "settings": SETTINGS, "seeds": []}
    with harness.folder() as directory:
        for seed in range(rounds):
            report["seeds"].append(_seed(Path(directory), seed))
            harness.say(f"imitation  seed {seed}  {json.dumps(report['seeds'][-1]['reached'])}")
            harness.write("imitation", {**report, **summary(report["seeds"])})


def _seed(folder: Path, seed: int) -> dict[str, Any]:
    """Run both arms with one seed."""
    reports = {arm: train(folder, settings(folder, arm, seed)) for arm in ARMS}
    rewards = {
        arm: [each["reward"] for each in report["steps"] if each["rollouts"]]
        for arm, report in reports.items()
    }
    target = fmean(rewards["grpo"][-WINDOW:])
    return {
        "seed": seed,
        "target": target,
        "reached": {arm: rollouts_until(target, found) for arm, found in rewards.items()},
        "rewards": rewards,
        "held_out": {
            arm: [each["score"]["mean"] for each in report["evaluations"]]
            for arm, report in reports.items()
        },
    }


def settings(folder: Path, arm: str, seed: int) -> dict[str, Any]:
    """Return an arm's configuration."""
    made = writer_settings(f"{arm}-{seed}", seed)
    made["tasks"]["val"] = f"{WORLD}:few_held_out_tasks"
    phases: list[dict[str, Any]] = [{"algorithm": "grpo", "steps": STEPS}]
    if arm == "sft_grpo":
        data = folder / "conversations.jsonl"
        data.write_text(conversations(CONVERSATIONS), encoding="utf-8")
        phases.insert(0, {"algorithm": "sft", "steps": SFT_STEPS, "data": [str(data)]})
    return {**made, "phases": phases}


def conversations(count: int) -> str:
    """Return right answers to questions about other items, one conversation per line."""
    lines: list[str] = []
    for task in other_tasks()[:count]:
        asked = world.PriceTask(**task.input)
        result = world.tool_result(asked.item, asked.price, asked.unit)
        answer = f"The {asked.item} costs {asked.price} {asked.unit}."
        messages = [
            {"role": "system", "content": world.WRITER_SYSTEM},
            {"role": "user", "content": world.writer_request(asked.question, result)},
            {"role": "assistant", "content": answer},
        ]
        lines.append(json.dumps({"agent": "writer", "messages": messages}) + "\n")
    return "".join(lines)


def rollouts_until(target: float, rewards: list[float]) -> int | None:
    """Return the rollouts of the steps up to the first that reach the target; None if none do."""
    for end in range(WINDOW, len(rewards) + 1):
        if fmean(rewards[end - WINDOW : end]) >= target:
            return end * STEP
    return None


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
        "held_out": {arm: interval([each["held_out"][arm][-1] for each in seeds]) for arm in ARMS},
    }
