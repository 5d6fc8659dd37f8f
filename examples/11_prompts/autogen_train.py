"""Runs the AutoGen program of `autogen_agent.py` on a task."""

from __future__ import annotations

import autogen_agent

import agl_core as agl


async def run_agent(task: agl.Task) -> str:
    """Run the program on one task."""
    return await autogen_agent.answer(task.input["question"])
