"""Two versions of a captured prompt, evaluated by real runs of an agent at an endpoint."""

from __future__ import annotations

import asyncio
import json

import pytest
from agl_testing.fake_openai import FakeOpenAI

from tests.plugins.results.conftest import CONFIG, captured
from tests.trainers.prompts.fakes import TEXT
from tests.trainers.prompts.runs import KIND, LONGER, WrittenRun

PROGRAM = """
import httpx

import agl_core as agl

KEPT = []


async def answer(task):
    llm = agl.current().llm
    _, _, host, path = llm.base_url.split("/", 3)
    KEPT.append(host)  # as a program that keeps its client
    asked = "Answer " + task.input + " briefly."
    messages = [dict(role="system", content=asked), dict(role="user", content=task.input)]
    with agl.agent_scope("writer"):
        async with httpx.AsyncClient(verify=False, timeout=600) as client:
            reply = await client.post(
                f"http://{KEPT[0]}/{path}/chat/completions",
                headers=dict(authorization="Bearer " + llm.api_key),
                json=dict(model="any", messages=messages),
            )
    return reply.json()["choices"][0]["message"]["content"]


def polite(task, output, attempt):
    return float("Kindly" in output and task.input != "task 0")
"""


@pytest.fixture
def run(monkeypatch, agl, tmp_path):
    monkeypatch.delenv("AGL_DISABLE_PLUGINS")  # a plugin reads the tasks
    with FakeOpenAI(script=lambda body: body["messages"][0]["content"]) as server:
        (tmp_path / "program.py").write_text(PROGRAM)
        tasks = [json.dumps({"id": str(number), "input": f"task {number}"}) for number in range(8)]
        (tmp_path / "tasks.jsonl").write_text("\n".join(tasks))
        run = WrittenRun(
            tmp_path / "agl_runs" / "shop",
            **{**CONFIG, "engine": {"name": "http", "base_url": server.base_url}},
            agent=f"{tmp_path}/program.py:answer",
            rewards=[{"name": f"{tmp_path}/program.py:polite"}],
            tasks={"val": f"{tmp_path}/tasks.jsonl"},
        )
        run.server = server
        asyncio.run(run.phase([(LONGER, TEXT), (KIND, LONGER)]))
        yield run


def heads(run):
    """The system prompts that the endpoint received, with the seeds."""
    return {
        (answer.body["messages"][0]["content"], answer.body.get("seed"))
        for answer in run.server.log
    }


def test_both_versions_run_on_the_same_tasks_with_the_same_seeds(agl, run, tmp_path):
    result = agl("eval", "shop", "--prompts", "before", "--prompts", "best", "--json", "e.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "e.json").read_text())
    before, best = (row["evaluation"] for row in found["versions"])
    assert before["tasks"] == {str(number): 0.0 for number in range(8)}
    assert best["tasks"] == {str(number): float(number > 0) for number in range(8)}
    assert found["difference"]["mean"] == 7 / 8
    assert found["difference"]["p"] == 2 / 2**7
    assert {head for head, _ in heads(run)} == {
        *(f"Answer task {number} briefly." for number in range(8)),
        *(f"Kindly answer task {number}." for number in range(8)),
    }
    assert "difference +0.875" in result.output


def test_the_prompts_of_a_checkpoint_are_those_of_its_evaluation(agl, run, tmp_path):
    checkpoint = run.checkpoint(0, writer=captured(LONGER))
    result = agl("eval", "shop", "--checkpoint", checkpoint, "--json", "e.json")
    assert result.exit_code == 0, result.output
    assert {head for head, _ in heads(run)} == {
        f"Answer task {number} in one sentence." for number in range(8)
    }
    assert json.loads((tmp_path / "e.json").read_text())["score"]["mean"] == 0.0


def test_without_a_version_the_program_sends_its_own_text(agl, run):
    assert agl("eval", "shop").exit_code == 0
    assert {head for head, _ in heads(run)} == {
        f"Answer task {number} briefly." for number in range(8)
    }
