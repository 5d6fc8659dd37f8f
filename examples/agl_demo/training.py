"""What training adds to the program: a function of a task, a reward, and the two data sets."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl_demo import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from agl_core import AttemptRecord, Task

TRAIN_SEED, HELD_OUT_SEED = 1, 2
TRAIN_TASKS, HELD_OUT_TASKS, FEW_HELD_OUT_TASKS = 1000, 200, 100


def model_path() -> str:
    """Directory of the model that ships with the demo."""
    return str(files("agl_demo") / "model")


def shipped(say: Callable[[str], None]) -> Path:
    """Locate the model that ships, as `agl_register_models` asks for it."""
    del say
    return Path(model_path())


async def run_agent(task: Task) -> str:
    """Run the untouched program on one task; the callback handler is the one added line."""
    from agl_langchain import AglCallbackHandler  # noqa: PLC0415

    from agl_demo.agent import aanswer  # noqa: PLC0415

    return await aanswer(task.input["question"], {"callbacks": [AglCallbackHandler()]})


def reward(task: Task, output: Any, attempt: AttemptRecord) -> float:  # noqa: ARG001
    """1.0 when the answer is right in every part, else 0.0."""
    return world.reward(world.PriceTask(**task.input), output)


def graded_reward(task: Task, output: Any, attempt: AttemptRecord) -> float:
    """In training also a part of the point for each part that is right; else as `reward`.

    A model that was not taught the shop's answers is right too seldom for groups of eight to show
    good from bad by right answers alone. Scores, before and after, count right answers only.
    """
    if attempt.rollout.mode != "train":
        return reward(task, output, attempt)
    parts = world.score(world.PriceTask(**task.input), output)
    return (sum(parts.values()) / len(parts) + all(parts.values())) / 2


def train_tasks() -> list[Task]:
    """Questions about items that the held-out tasks never mention."""
    return rows("train", TRAIN_TASKS, TRAIN_SEED)


def held_out_tasks() -> list[Task]:
    """Questions that training never sees."""
    return rows("held_out", HELD_OUT_TASKS, HELD_OUT_SEED)


def few_held_out_tasks() -> list[Task]:
    """The first of them, for a model that takes its time."""
    return rows("held_out", FEW_HELD_OUT_TASKS, HELD_OUT_SEED)


def rows(split: world.Split, count: int, seed: int) -> list[Task]:
    """Tasks of agl-core with the questions of one split."""
    from agl_core import Task  # noqa: PLC0415

    return [
        Task(id=f"{split}-{index}", input=asdict(task))
        for index, task in enumerate(world.tasks(split, count, seed=seed))
    ]
