"""Agents that show images: an engine with vision trains on them, any other's calls are refused."""

from __future__ import annotations

from typing import Any

import pytest

import agl_core as agl
from agl_core.errors import CaptureError
from tests.core.app.conftest import Bench, ask, says_yes
from tests.core.bandit_engine import BanditEngine

MARK = ord("[")
"""The only one in a prompt, whose ids are the bytes of its parts as Python prints them."""
RED = "data:image/png;base64,cmVk"


class VisionEngine(BanditEngine):
    """Takes a bracket for an image."""

    def image_token(self, policy: str) -> int | None:
        return MARK


async def shows(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        part = {"type": "image_url", "image_url": {"url": RED}}
        return (await ask([{"role": "user", "content": [part]}]))["content"]


def shown(bench: Bench, **inputs: Any) -> agl.Report:
    return bench.train({"agent": shows, "reward": says_yes, **inputs})


def test_a_run_trains_on_images(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.app.conftest.BanditEngine", VisionEngine)
    shown(bench)
    assert isinstance(bench.engine, VisionEngine)
    for batch in bench.engine.batches:
        assert batch.images == (RED,)
        assert list(batch.tokens[:3]) == [-1, ord("{"), ord("'")]


def test_a_run_whose_engine_does_not_see_ends_with_what_to_do(bench: Bench) -> None:
    with pytest.raises(CaptureError, match=r"'image_url'.*train it with an engine"):
        shown(bench)
