"""Train the writer of `agent.py` without changing that file: AutoGen names the agents."""

from __future__ import annotations

from pathlib import Path

import agent
from agl_demo.example import held_out_tasks, reward, show, train_tasks

import agl_core as agl


async def run_agent(task: agl.Task) -> str:
    """Run the program on one task."""
    return await agent.answer(task.input["question"])


if __name__ == "__main__":
    report = agl.train(
        run_agent,
        train_tasks,
        val_tasks=held_out_tasks,
        reward=reward,
        config=Path(__file__).with_name("run.toml"),
    )
    show(report)
