"""Checkpoints of runs with an adapter: their size, and all that is done with them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agl_results._serve import serve

import agl_core as agl
from agl_core.errors import TrainingError

TASKS = [{"input": number} for number in range(2)]
LORA = {"rank": 4, "alpha": 16}


def run_agent(task: agl.Task) -> str:
    import httpx

    llm = agl.current().llm
    with agl.agent_scope("writer"), httpx.Client(timeout=600) as client:
        answer = client.post(
            f"{llm.base_url}/chat/completions",
            json={
                "model": "any",
                "messages": [{"role": "user", "content": f"{task.input}"}],
                "max_tokens": 4,
            },
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"] or ""


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> float:
    return float(len(output))


@pytest.fixture
def config(model_path: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "name": "run",
        "directory": str(tmp_path),
        "agents": ["writer"],
        "model": model_path,
        "engine": {"name": "torch", "lora": LORA, "threads": 1},
        "algorithm": {"name": "reinforce", "lr": 1e-2, "group_size": 2},
        "train": {"steps": 1, "tasks_per_step": 2},
        "rollout": {"timeout_s": 600},
    }


def train(config: dict[str, Any], **train: Any) -> agl.Report:
    given = {**config, "train": {**config["train"], **train}}
    return agl.train(run_agent, TASKS, reward=reward, config=given, progress=False)


async def served(directory: Path, question: str) -> str:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(directory, host="127.0.0.1", port=0, ready=ready))
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    body = {
        "model": directory.name,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 6,
    }
    try:
        url = f"{await _of(task, ready)}/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            return (await response.json())["choices"][0]["message"]["content"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _of(task: asyncio.Task[None], ready: asyncio.Future[str]) -> str:
    if not ready.done():
        await task
    return await ready


def test_a_run_goes_on_is_scored_exported_and_served_from_the_adapter(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """G10: everything that takes a checkpoint takes one without the frozen weights."""
    report = train(config)
    assert report.best is not None
    weights = Path(report.best) / "policies" / "trained"
    files = {path.name for path in weights.rglob("*")}
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    state = json.loads((Path(report.best) / "state.json").read_text())
    assert state["engine"] == "torch"

    scored = agl.evaluate(
        run_agent, TASKS, reward=reward, config=config, checkpoint=report.best, progress=False
    )
    assert scored.score.n

    exported = Path(report.export(str(tmp_path / "out"))) / "trained"
    assert (exported / "model.safetensors").is_file()
    assert not list(exported.rglob("training_state*"))
    assert asyncio.run(served(exported, "hi")) == asyncio.run(served(weights, "hi"))

    longer = train(config, steps=2, resume=True)
    assert len(longer.steps) == 2
    assert (
        longer.policies["trained"]["sha256_before"] == report.policies["trained"]["sha256_before"]
    )


def test_a_damaged_checkpoint_is_neither_served_nor_exported(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """E2: one flipped bit."""
    report = train(config)
    assert report.best is not None
    file = next(Path(report.best).rglob("adapter_model.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(TrainingError, match=r"adapter_model\.safetensors"):
        report.export(str(tmp_path / "out"))
    with pytest.raises(TrainingError, match=r"adapter_model\.safetensors"):
        asyncio.run(served(Path(report.best) / "policies" / "trained", "hi"))
    with pytest.raises(TrainingError, match=r"adapter_model\.safetensors"):
        train(config, steps=2, resume=True)
    assert not (tmp_path / "out").exists()
