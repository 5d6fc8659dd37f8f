"""Agents that are programs of their own, in whatever language: the URL says who speaks."""

import os
import subprocess
import sys

import agl_core as agl
from agl_core.tracing import child_environment
from tests.core.app.conftest import Bench, says_yes

PROGRAM = """
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Well?"}]}).encode()
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    body,
    {
        "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        "Content-Type": "application/json",
    },
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""


def test_a_program_that_knows_only_its_base_url_is_trained(bench: Bench) -> None:
    def run_agent(task: agl.Task) -> str:
        environment = {**os.environ, **child_environment(agent="writer")}
        done = subprocess.run(
            [sys.executable, "-S", "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    report = bench.train({"agent": run_agent, "reward": says_yes}, train__steps=1)
    (batch,) = bench.engine.batches
    assert batch.policy == "trained"
    assert len(batch.call_ids) == report.calls == 8
    assert set(report.lost) <= {"groups_without_signal"}
