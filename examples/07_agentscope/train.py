"""Train the writer of `agent.py`, or with AgentScope 1 that of `agent_v1.py`."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from agl_demo.example import held_out_tasks, reward, show, train_tasks

import agl_core as agl

if version("agentscope").startswith("1."):
    # Otherwise AgentScope prints every message of an agent.
    os.environ["AGENTSCOPE_DISABLE_CONSOLE_OUTPUT"] = "true"
    import agent_v1 as agent
else:
    import agent


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
