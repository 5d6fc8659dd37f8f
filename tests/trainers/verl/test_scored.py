"""A checkpoint that verl wrote: scored by ``agl eval`` and served by ``agl serve``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import ray
from agl_verl._engine import VerlEngine
from agl_verl._options import VerlOptions
from agl_verl.cpu._server import actor_name

from agl_core.store._sqlite import SqliteStore
from agl_core.types import ModelCall, Policy, RolloutQuery
from tests.trainers.verl.recomputed import answered_by
from tests.trainers.verl.test_engine import served_by

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
RUN = ROOT / "examples" / "03_verl_cpu" / "run.toml"
MODEL = str(ROOT / "examples" / "agl_demo" / "model")
SMALL = ("train.steps=1", "train.tasks_per_step=2", "algorithm.lr=1e-2", "tasks.val=null")


@contextmanager
def agl(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, ended with the block at the latest."""
    with subprocess.Popen(
        [sys.executable, "-m", "agl_core.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def done(*arguments: str) -> None:
    with agl(*arguments) as process:
        told, _ = process.communicate()
        assert process.returncode == 0, told


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by a run of one step, after which the weights are others than the base model's."""
    directory = tmp_path_factory.mktemp("runs")
    settings = (f"directory={directory}", "name=run", "engine.device=cpu", *SMALL)
    done("train", str(RUN), *[part for each in settings for part in ("--set", each)])
    return directory / "run" / "checkpoints" / "step-000001"


@pytest.fixture(scope="module")
def weights(checkpoint: Path) -> str:
    (policy,) = (checkpoint / "policies").iterdir()
    return str(policy)


def calls_by_agent(file: Path) -> dict[str, list[ModelCall]]:
    async def read() -> dict[str, list[ModelCall]]:
        store = SqliteStore(file)
        await store.open()
        try:
            rollouts = await store.rollouts(RolloutQuery())
            found: dict[str, list[ModelCall]] = {}
            for span in await store.spans([rollout.id for rollout in rollouts]):
                if span.call is not None:
                    found.setdefault(span.call.agent, []).append(span.call)
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def of_weights(directory: str, call: ModelCall) -> bool:
    (choice,) = call.choices
    return answered_by(directory, call.prompt_token_ids, choice.token_ids, choice.logprobs)


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore")  # verl's and Ray's, of their own imports
async def test_an_engine_that_only_serves_takes_the_weights_of_one_policy(weights: str) -> None:
    engine = VerlEngine(VerlOptions(device="cpu"), None)
    await engine.start(
        [
            Policy(name="writer", model=MODEL, trainable=True),
            Policy(name="planner", model=MODEL),
        ]
    )
    try:
        await served_by(engine, "writer", MODEL)
        await engine.load("writer", weights, version=1)
        await served_by(engine, "writer", weights)
        await served_by(engine, "planner", MODEL)

        os.kill(ray.get(ray.get_actor(actor_name(0)).pid.remote()), signal.SIGKILL)
        await served_by(engine, "writer", weights)
    finally:
        await engine.stop()


def test_eval_scores_the_weights_of_the_checkpoint_and_no_others(
    checkpoint: Path, weights: str, tmp_path: Path
) -> None:
    run, out = checkpoint.parents[1], tmp_path / "evaluation.json"
    tasks = f"tasks.val={ROOT}/examples/01_plain_client/train.py:held_out_tasks"
    done(
        *("eval", str(run / "config.json"), "--checkpoint", str(checkpoint)),
        *("--set", tasks, "--json", str(out)),
    )
    evaluation: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert evaluation["step"] == 1
    calls = calls_by_agent(run / "eval" / "store.db")
    assert calls.keys() == {"planner", "writer"}
    assert of_weights(weights, calls["writer"][0])
    assert not of_weights(MODEL, calls["writer"][0])
    assert {call.policy_version for call in calls["writer"]} == {1}
    assert {call.policy_version for call in calls["planner"]} == {0}


def test_serve_answers_with_the_weights_of_the_checkpoint(weights: str) -> None:
    body = {
        "model": Path(weights).name,
        "messages": [{"role": "user", "content": "What is a price?"}],
        "logprobs": True,
        "return_token_ids": True,
        "max_tokens": 8,
    }
    with agl("serve", weights, "--port", "0", "--device", "cpu") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" at ")[1].split()[0]
        data = json.dumps(body).encode()
        request = Request(f"{url}/chat/completions", data, {"content-type": "application/json"})
        with urlopen(request, timeout=60) as response:
            answer = json.load(response)
    (choice,) = answer["choices"]
    told = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    prompt, sampled = answer["prompt_token_ids"], choice["token_ids"]
    assert answered_by(weights, prompt, sampled, told)
    assert not answered_by(MODEL, prompt, sampled, told)
