"""Runs `program.py` and rewards its planner: once at the end, or in each turn."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager

import program

import agl_core as agl

TRAIN, HELD_OUT = 256, 200


def seat(role: str, turn: int) -> AbstractContextManager[object]:
    """Name the agent of a call; each turn is a run of its own."""
    return agl.agent_scope(role, run_id=f"{role}-{turn}")


def run_agent(task: agl.Task) -> str:
    """Answer a query; the reward of `reward` is the only one."""
    return program.solve(task.input, role=seat)


def run_agent_per_turn(task: agl.Task) -> str:
    """Answer a query; each turn of the planner is rewarded for itself."""

    def turn(number: int, opened: bool) -> None:
        agl.emit_reward(float(opened), "turn", agent="planner", agent_run=f"planner-{number}")

    return program.solve(task.input, role=seat, turn=turn)


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> dict[str, float]:
    """Reward the whole attempt for a right answer; every turn of the planner gets it."""
    del task, attempt
    return {"planner": float(output == program.OUT)}


def train_tasks() -> list[agl.Task]:
    """Return ways to train on."""
    return _tasks("train", TRAIN)


def held_out_tasks() -> list[agl.Task]:
    """Return other ways."""
    return _tasks("held-out", HELD_OUT)


def _tasks(split: str, count: int) -> list[agl.Task]:
    chance = random.Random(split)
    return [
        agl.Task(id=f"{split}-{number}", input=chance.choices([*program.DOORS], k=program.WAY))
        for number in range(count)
    ]
