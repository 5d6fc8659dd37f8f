"""Trains the agent of `program.py`: its tasks, and the reward for its answer."""

from __future__ import annotations

import random

import problems
import program

import agl_core as agl

TRAIN, HELD_OUT = 512, 200


async def run_agent(task: agl.Task) -> str:
    """Solve one problem."""
    return await program.solve(task.input["question"])


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> agl.Score:
    """Return 1 for a right answer and 0 for any other."""
    del attempt
    return agl.Score(*problems.judge(output, task.input["value"], task.input["letter"]))


def train_tasks() -> list[agl.Task]:
    """Return problems to train on."""
    return _tasks("train", TRAIN)


def held_out_tasks() -> list[agl.Task]:
    """Return other problems."""
    return _tasks("held-out", HELD_OUT)


def mixed_train_tasks() -> list[agl.Task]:
    """Return problems to train on, half of which offer options."""
    return _tasks("train", TRAIN, options=True)


def mixed_held_out_tasks() -> list[agl.Task]:
    """Return other problems, half of which offer options."""
    return _tasks("held-out", HELD_OUT, options=True)


def _tasks(split: str, count: int, *, options: bool = False) -> list[agl.Task]:
    chance = random.Random(split)
    tasks: list[agl.Task] = []
    for number in range(count):
        drawn = problems.draw(chance, options=options and number % 2 == 1)
        known = {"question": drawn.question, "value": drawn.value, "letter": drawn.letter}
        tasks.append(agl.Task(id=f"{split}-{number}", input=known))
    return tasks
