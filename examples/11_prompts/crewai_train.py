"""Runs the CrewAI program of `crewai_agent.py` on a task."""

from __future__ import annotations

import os

# Set before the imports, which read them: crewai would send telemetry, and openai would build its
# types while it parses the first replies, which fails in threads.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "DEFER_PYDANTIC_BUILD": "false",
}

import crewai_agent
from crewai.events.event_listener import event_listener

import agl_core as agl

# Otherwise CrewAI prints a box for every start and end of an agent.
event_listener.formatter.verbose = False


def run_agent(task: agl.Task) -> str:
    """Run the program on one task."""
    return crewai_agent.answer(task.input["question"])
