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
from importlib.metadata import metadata
from pathlib import Path

import pytest

from agl_core.plugins.requirements import unmet
from tests.coexistence.programs import names

ROOT = Path(__file__).parents[2]
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
    return [name for name in names() if not unmet("agl-core", extra_of(name))]


def extra_of(name: str) -> str:
    """The extra of a folder: that of its version, else that of the framework."""
    extras = metadata("agl-core").get_all("Provides-Extra", [])
    extra = name.replace("_", "-")
    return extra if extra in extras else extra.rstrip("0123456789")


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
