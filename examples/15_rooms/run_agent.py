"""Runs `program.py` on a task, and has the tasks and the reward."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict

import office
import program

import agl_core as agl

TEAMS = ("sales", "design", "press", "legal", "research", "support")
FORMS = (
    "A room for {people} on {day} at {time} with a {needs}.",
    "For {people} with a {needs}, {day} at {time}, please.",
)
TRAIN, VAL, HELD_OUT = 120, 60, 200
SEED = 1


def run_agent(task: agl.Task) -> str:
    """Choose a room for one request."""
    with agl.agent_scope("selector"):
        return program.choose(task.input["request"], task.input["team"])


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> agl.Score:
    """Grade the answer from 0 to 1, with the reason for what it lacks."""
    del attempt
    value, why = office.grade(office.Meeting(**task.metadata), output)
    return agl.Score(value, why)


def train_tasks() -> list[agl.Task]:
    """Return requests from whose attempts prompts are improved."""
    return _tasks("train", 0, TRAIN)


def val_tasks() -> list[agl.Task]:
    """Return requests that choose prompts."""
    return _tasks("val", TRAIN, VAL)


def held_out_tasks() -> list[agl.Task]:
    """Return requests that neither improve nor choose a prompt, for the reported score."""
    return _tasks("held-out", TRAIN + VAL, HELD_OUT)


def _tasks(split: str, first: int, count: int) -> list[agl.Task]:
    chance = random.Random(SEED)
    wanted = [
        office.Meeting(*each)
        for each in itertools.product(office.DAYS, office.TIMES, office.NUMBERS, office.NEEDS)
    ]
    chance.shuffle(wanted)
    drawn = [(each, chance.choice(FORMS), chance.choice(TEAMS)) for each in wanted]
    return [
        agl.Task(
            id=f"{split}-{number}",
            input={"request": form.format(**asdict(meeting)), "team": team},
            expected=meeting.best,
            metadata=asdict(meeting),
        )
        for number, (meeting, form, team) in enumerate(drawn[first : first + count])
    ]
