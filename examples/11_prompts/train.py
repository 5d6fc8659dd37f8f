"""Runs the LangGraph program of `agent.py` on a task."""

from __future__ import annotations

import agent

import agl_core as agl


def run_agent(task: agl.Task) -> str:
    """Run the program on one task."""
    return agent.answer(task.input["question"])
