"""What training needs besides the agent program: `run_agent`, rewards and data sets."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl_demo import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from agl_core import AttemptRecord, Score, Task

TRAIN_SEED, HELD_OUT_SEED = 1, 2
TRAIN_TASKS, HELD_OUT_TASKS, FEW_HELD_OUT_TASKS = 1000, 200, 100


def model_path() -> str:
    """Return the directory of the shipped model."""
    return str(files("agl_demo") / "model")


def shipped(say: Callable[[str], None]) -> Path:
    """Return the directory of the shipped model; the signature is that of a registered model."""
    del say
    return Path(model_path())


async def run_agent(task: Task) -> str:
    """Run the unchanged program on one task; the callback handler records its agents."""
    from agl_langchain import AglCallbackHandler  # noqa: PLC0415

    from agl_demo.agent import aanswer  # noqa: PLC0415

    return await aanswer(task.input["question"], {"callbacks": [AglCallbackHandler()]})


def reward(task: Task, output: Any, attempt: AttemptRecord) -> Score:  # noqa: ARG001
    """Return 1.0 if every part of the answer is right, else 0.0; with what is wrong."""
    return _score(task, output, world.reward(world.PriceTask(**task.input), output))


def graded_reward(task: Task, output: Any, attempt: AttemptRecord) -> Score:
    """Return, in training, also partial credit for each right part; otherwise as `reward`.

    A model that was not trained on the shop's answers is right too rarely: most groups of eight
    would have equal returns. The scores before and after training count only right answers.
    """
    if attempt.rollout.mode != "train":
        return reward(task, output, attempt)
    parts = world.score(world.PriceTask(**task.input), output)
    return _score(task, output, (sum(parts.values()) / len(parts) + all(parts.values())) / 2)


def _score(task: Task, output: Any, value: float) -> Score:
    from agl_core import Score  # noqa: PLC0415

    return Score(value, world.wrong(world.PriceTask(**task.input), output))


def train_tasks() -> list[Task]:
    """Return questions about items that the held-out tasks do not contain."""
    return rows("train", TRAIN_TASKS, TRAIN_SEED)


def held_out_tasks() -> list[Task]:
    """Return questions about items that the training tasks do not contain."""
    return rows("held_out", HELD_OUT_TASKS, HELD_OUT_SEED)


def few_held_out_tasks() -> list[Task]:
    """Return the first of `held_out_tasks`, for slower models."""
    return rows("held_out", FEW_HELD_OUT_TASKS, HELD_OUT_SEED)


def rows(split: world.Split, count: int, seed: int) -> list[Task]:
    """Return tasks with questions of one split."""
    from agl_core import Task  # noqa: PLC0415

    return [
        Task(id=f"{split}-{index}", input=asdict(task))
        for index, task in enumerate(world.tasks(split, count, seed=seed))
    ]
