"""Train the writer of `agent.py`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import agent
from agl_demo import world

import agl_core as agl


async def run_agent(task: agl.Task) -> str:
    """Run the program on one task."""
    return await agent.answer(task.input["question"])


def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:  # noqa: ARG001
    """1.0 when the answer is right in every part, else 0.0."""
    return world.reward(world.PriceTask(**task.input), output)


def train_tasks() -> list[agl.Task]:
    return _tasks("train", 200)


def held_out_tasks() -> list[agl.Task]:
    """Questions about items that training never mentions."""
    return _tasks("held_out", 100)


def _tasks(split: world.Split, count: int) -> list[agl.Task]:
    return [
        agl.Task(id=f"{split}-{index}", input=asdict(task))
        for index, task in enumerate(world.tasks(split, count, seed=1))
    ]


if __name__ == "__main__":
    report = agl.train(
        run_agent,
        train_tasks,
        val_tasks=held_out_tasks,
        reward=reward,
        config=Path(__file__).with_name("run.toml"),
    )
    before, after = report.evaluations[0].score, report.evaluations[-1].score
    print(f"held-out tasks answered right: {before.mean:.2f} before, {after.mean:.2f} after")
    print(f"model calls: {report.calls}, lost by cause: {report.lost or 'nothing'}")
    print(f"weights: {report.export(f'{report.directory}/weights')}")
