"""Runs and child processes attach the integration without a framework."""

import os
import subprocess
import sys
import textwrap
import urllib.request

import pytest
from agl_testing.fake_openai import FakeOpenAI

import agl_core as agl
from agl_core.tracing import child_environment, enter
from tests.core.app.conftest import bench, speak
from tests.plugins.http_clients.test_requests import DATA

__all__ = ["bench"]

CHILD = """
    import sys, urllib.request
    import agl_core as agl
    attachment = agl.attach()
    try:
        with agl.agent_scope("writer"):
            urllib.request.urlopen(sys.argv[1], sys.argv[2].encode())
    except agl.CaptureError as error:
        print(error)
    attachment.detach()
"""


def test_a_trained_agent_of_a_child_process_is_refused(server, other, make):
    """C2: `agl.attach()` in a Python subprocess."""
    with enter(make()):
        environment = {**os.environ, **child_environment(agent="writer")}
    arguments = (f"{other.base_url}/chat/completions", DATA.decode())
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Agent 'writer' is trained" in done.stdout
    assert "urllib.request" in done.stdout
    assert server.log == other.log == []


def test_a_run_refuses_its_trained_agent_and_counts_others(bench):
    """C2: no framework is installed for it."""
    with FakeOpenAI(lambda body: "from the provider") as provider:
        url = f"{provider.base_url}/chat/completions"

        def ask():
            urllib.request.urlopen(url, DATA).close()

        async def run_agent(task):
            with agl.agent_scope("planner"):
                ask()
            with agl.agent_scope("writer"), pytest.raises(agl.CaptureError, match="urllib"):
                ask()
            return await speak("writer", "write")

        report = bench.train({"agent": run_agent}, train__steps=1)
    address = provider.base_url.removeprefix("http://").removesuffix("/v1")
    assert len(provider.log) == 8
    assert report.lost[f"sent_elsewhere_by_planner_to_{address}"] == 8
    assert report.lost[f"refused_elsewhere_by_writer_to_{address}"] == 8
