"""`agl doctor` with the engine that knows its tokenizer and its context."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
from agl_doctor._diagnose import Diagnosis
from agl_doctor._diagnose import diagnose as examine

import agl_core as agl
from agl_core.app import App, Inputs
from agl_core.config.loader import resolve
from agl_core.types import Finding


async def ask(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    llm = agl.current().llm
    async with httpx.AsyncClient(verify=False, timeout=600) as client:
        answer = await client.post(
            f"{llm.base_url}/chat/completions",
            headers={"authorization": f"Bearer {llm.api_key}"},
            json={"model": "any", "messages": messages, "max_tokens": 6, **more},
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


async def forgetful(task: agl.Task) -> str:
    """Two turns of one agent; the answer is sent back as something else."""
    with agl.agent_scope("writer"):
        messages = [{"role": "user", "content": "hello"}]
        await ask(messages)
        messages += [
            {"role": "assistant", "content": "never said"},
            {"role": "user", "content": "again"},
        ]
        return (await ask(messages))["content"]


def by_sample(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
    return float(attempt.rollout.metadata["sample"])


def diagnose(model: str, directory: Path, agent: Any = forgetful) -> Diagnosis:
    config = resolve(
        {
            "directory": str(directory),
            "agents": ["writer"],
            "model": model,
            "store": {"name": "memory"},
            "engine": {"name": "torch", "device": "cpu"},
            "algorithm": {"group_size": 2},
        }
    )
    tasks = [{"input": 1}]
    inputs = Inputs(agent=agent, tasks=tasks, reward=by_sample)
    return asyncio.run(examine(App(config, inputs), tasks=1))


def only(diagnosis: Diagnosis, check: str) -> Finding:
    (found,) = [finding for finding in diagnosis.findings if finding.check == check]
    return found


def test_ids_decode_and_lengths_fit(model_path: str, tmp_path: Path) -> None:
    diagnosis = diagnose(model_path, tmp_path)
    assert not diagnosis.failed, [f for f in diagnosis.findings if f.severity == "error"]
    assert only(diagnosis, "backend.tokens").figures["stream_token_ids"] is True
    decoded = only(diagnosis, "tokens.decode")
    assert (decoded.severity, decoded.figures) == ("ok", {"checked": 4, "wrong": 0})
    context = only(diagnosis, "lengths.context")
    assert (context.severity, context.figures["context"]) == ("ok", 512)
    assert only(diagnosis, "rewards.vary").severity == "ok"


def test_a_break_is_shown_as_text(model_path: str, tmp_path: Path) -> None:
    broken = only(diagnose(model_path, tmp_path), "prefix.break")
    assert broken.figures["cause"] == "edited"
    assert broken.figures["calls"] == 2
    assert "reads 'never said" in broken.measured


TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
BLIND = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


async def with_tools(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        answer = await ask([{"role": "user", "content": "hello"}], tools=[TOOL])
    with agl.agent_scope("judge"):
        await ask([{"role": "user", "content": "hello"}])
    return str(answer["content"])


def blind(model: str, directory: Path) -> str:
    """The model with a chat template that knows no tools."""
    copied = shutil.copytree(model, directory / "blind")
    (copied / "chat_template.jinja").write_text(BLIND)
    return str(copied)


def test_tools_that_a_template_leaves_out_are_an_error(model_path: str, tmp_path: Path) -> None:
    """G4: the doctor names agents, policy and model; where tools are shown it says nothing."""
    diagnosis = diagnose(blind(model_path, tmp_path), tmp_path, agent=with_tools)
    (finding,) = [found for found in diagnosis.findings if found.check == "tools.shown"]
    assert finding.severity == "error"
    assert finding.figures["calls"] == {"writer": 2}
    assert "'trained'" in finding.measured
    assert "chat_template.jinja" in finding.fix
    shown = diagnose(model_path, tmp_path / "shown", agent=with_tools)
    assert not [found for found in shown.findings if found.check == "tools.shown"]


def test_tools_that_a_template_leaves_out_are_counted(model_path: str, tmp_path: Path) -> None:
    """G4: the report of a run has the calls whose tools the model never saw."""
    for model, lost in ((blind(model_path, tmp_path), 2), (model_path, None)):
        report = agl.train(
            with_tools,
            [{"input": 1}],
            agents=["writer"],
            reward=by_sample,
            model=model,
            progress=False,
            config={
                "name": f"run-{lost}",
                "directory": str(tmp_path),
                "store": {"name": "memory"},
                "engine": {"name": "torch", "device": "cpu"},
                "algorithm": {"group_size": 2},
                "train": {"steps": 1, "tasks_per_step": 1},
            },
        )
        assert report.lost.get("calls_with_unshown_tools") == lost
