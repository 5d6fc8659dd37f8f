"""A run with a trained adapter, its exports, and the ids that `agl serve` answers with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import torch
from agl_results._serve import serve
from agl_results._weights import WeightsExport
from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.options import LoraOptions, TorchOptions

from agl_core.app import load_plugins
from agl_core.interfaces import AlgorithmSetup
from agl_core.text import json_bytes
from agl_core.training.checkpoint import CheckpointState
from agl_core.types import Policy
from tests.trainers.torch.conftest import Sampled, batch_of

POLICY = "trained"
COUNT = 32
"""Tokens of the compared answers."""
QUESTION = "How many lamps are left?"
OPTIONS = TorchOptions(device="cpu", dtype="float32", threads=1, lora=LoraOptions(rank=4))


class Served(NamedTuple):
    """A prompt and its most likely answer."""

    prompt: list[int]
    answer: list[int]


async def trained_run(directory: Path, model: str, *, updates: int = 4) -> Path:
    """Train an adapter of rank 4 in float32, and write a run's directory with its checkpoint."""
    setup = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=3e-2)
    checkpoint = directory / "checkpoints" / "step-000001"
    engine = TorchEngine(OPTIONS, setup)
    await engine.start([Policy(name=POLICY, model=model, trainable=True)])
    try:
        for step in range(updates):
            sample = Sampled([5, 60, 200, 30], [70, 75, 80, 9, 33, 101], [0.0] * 6)
            await engine.update(batch_of([sample], policy=POLICY, step=step))
        (checkpoint / "policies").mkdir(parents=True)
        await engine.save(POLICY, str(checkpoint / "policies" / POLICY))
    finally:
        await engine.stop()
    state = CheckpointState(step=1, config_digest="", versions={}, sha256_before={}, engine="torch")
    (checkpoint / "state.json").write_bytes(json_bytes(state))
    config = {
        "name": "run",
        "model": model,
        "agents": ["writer"],
        "directory": str(directory.parent),
    }
    (directory / "config.json").write_text(json.dumps(config))
    return checkpoint


async def exported(checkpoint: Path, directory: Path, form: Any, **options: Any) -> Path:
    """Export the run's policy; returns its directory or file."""
    chosen = WeightsExport(form, options.get("dtype"), ())
    await asyncio.to_thread(lambda: list(chosen.write(checkpoint, directory, load_plugins())))
    return directory / (f"{POLICY}.gguf" if form == "gguf" else POLICY)


async def served_ids(target: Path) -> Served:
    """Return the ids of the answer of `agl serve` at temperature 0, and of its prompt."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(target, host="127.0.0.1", port=0, device="cpu", ready=ready)
    )
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    body = {
        "model": POLICY,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": COUNT,
        "return_token_ids": True,
    }
    try:
        if serving.done():
            serving.result()
        url = f"{ready.result()}/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            answer = await response.json()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    found = Served(answer["prompt_token_ids"], answer["choices"][0]["token_ids"])
    assert len(found.answer) == COUNT, f"the answer ended after {len(found.answer)} tokens"
    return found


def most_likely(model: Any, prompt: Sequence[int]) -> list[int]:
    """Return the answer of a module of transformers, without its code of generation."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(COUNT):
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]
