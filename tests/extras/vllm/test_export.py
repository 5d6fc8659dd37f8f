"""`agl export` in vLLM: the ids that `agl serve` gives, of merged weights and of an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from agl_vllm import VllmControl

from tests.exporting import COUNT, QUESTION, Served, exported, served_ids, trained_run
from tests.extras.vllm.tiny_model import make_model
from tests.extras.vllm.vllm_server import NAME, VllmServer
from tests.extras.vllm.vllm_site import TIMEOUT_S


@pytest.fixture
async def whole(tmp_path: Path) -> tuple[Path, Served]:
    """Merged weights, and what `agl serve` answers from the run that they are of."""
    model = make_model(tmp_path / "model", seed=3)
    checkpoint = await trained_run(tmp_path / "run", model)
    return await exported(checkpoint, tmp_path / "hf", "hf"), await served_ids(checkpoint)


@pytest.fixture
def exported_server(whole: tuple[Path, Served], tmp_path: Path) -> Iterator[VllmServer]:
    found = VllmServer(str(whole[0]), tmp_path / "vllm.log")
    try:
        found.start()
        yield found
    finally:
        found.stop()


async def answer_of(server: VllmServer, model: str) -> Served:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": COUNT,
        "return_token_ids": True,
    }
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        reply = await client.post(f"{server.base_url}/chat/completions", json=body)
    answer = reply.raise_for_status().json()
    return Served(answer["prompt_token_ids"], answer["choices"][0]["token_ids"])


async def test_vllm_gives_the_ids_that_are_served(
    whole: tuple[Path, Served], exported_server: VllmServer, tmp_path: Path
) -> None:
    """Issue 15: in float32, 32 ids at temperature 0; the adapter is one on the merged weights."""
    directory, served = whole
    assert await answer_of(exported_server, NAME) == served
    checkpoint = await trained_run(tmp_path / "second", str(directory))
    adapter = await exported(checkpoint, tmp_path / "adapter", "adapter")
    adapted = await served_ids(checkpoint)
    assert adapted.answer != served.answer
    async with VllmControl(exported_server.base_url) as control:
        await control.load_adapter("second", str(adapter))
    assert await answer_of(exported_server, "second") == adapted
