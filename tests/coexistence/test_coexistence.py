"""Beside LangSmith, AgentOps and Langfuse: both record, in either order of installation.

Of each framework that is installed, `side` plays the canonical scenario in all its forms, with and
without agl, under each of these tools and under all of them at once. It checks that agl's record is the exact one with one call id
on each request, that the tool's own is the same with agl and without, that detaching restores what
was wrapped, and that nothing reaches for the network.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "agent_framework": "agent_framework",
    "agentscope": "agentscope",
    "agentscope1": "agentscope",
    "autogen": "autogen_agentchat",
    "crewai": "crewai",
    "langchain": "langchain",
    "openai": "openai",
    "openai_agents": "agents",
}
TOOLS = ("agentops", "langfuse", "langsmith")
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TESTING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def chosen() -> list[str]:
    """``AGL_COEXIST`` lists those that have to run; without it, all do that are installed."""
    named = os.environ.get("AGL_COEXIST", "").split()
    if named or not all(map(importlib.util.find_spec, TOOLS)):
        return named
    installed = [name for name, module in FRAMEWORKS.items() if importlib.util.find_spec(module)]
    return [name for name in installed if name != other_agentscope()]


def other_agentscope() -> str:
    """Both of its versions are one module."""
    installed = importlib.util.find_spec("agentscope") and version("agentscope")
    return "agentscope" if (installed or "").startswith("1.") else "agentscope1"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", chosen())
def test_both_record(framework):
    done = subprocess.run(
        [sys.executable, "-m", "tests.coexistence.side", framework],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
