"""Train the writer of `agent.py`."""

from __future__ import annotations

import os
from pathlib import Path

# Set before the imports, which read them: crewai would send telemetry, and openai would build its
# types while it parses the first replies, which fails in threads.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "DEFER_PYDANTIC_BUILD": "false",
}

import agent
from agl_demo.example import held_out_tasks, reward, show, train_tasks
from crewai.events.event_listener import event_listener

import agl_core as agl

# Otherwise CrewAI prints a box for every start and end of an agent.
event_listener.formatter.verbose = False


def run_agent(task: agl.Task) -> str:
    """Run the program on one task."""
    return agent.answer(task.input["question"])


if __name__ == "__main__":
    report = agl.train(
        run_agent,
        train_tasks,
        val_tasks=held_out_tasks,
        reward=reward,
        config=Path(__file__).with_name("run.toml"),
    )
    show(report)
