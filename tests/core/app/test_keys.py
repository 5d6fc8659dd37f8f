"""What agents of a run can do with the keys that they find, and where no key is."""

from __future__ import annotations

import asyncio
import json
import os
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import agl_core as agl
from agl_core.serving import ENV_KEY
from tests.core.app.conftest import Bench, speak

CHEAT = {"value": 1000.0}


def test_an_attempt_cannot_reward_its_siblings(bench: Bench, tmp_path: Path) -> None:
    """F2: one attempt gave each sibling 1,000; no key is in the store, nor the operators' anywhere."""
    siblings: dict[str, tuple[str, str]] = {}
    statuses: list[int] = []
    found: set[str] = set()

    async def agent(task: agl.Task) -> str:
        here = agl.current()
        siblings[here.attempt.id] = (here.rollout.id, here.llm.api_key)
        found.update((here.llm.api_key, os.environ["OPENAI_API_KEY"]))
        found.update(agl.resource(name).api_key for name in here.resources.items)
        assert ENV_KEY not in os.environ
        await asyncio.to_thread(reward_all, here)
        return await speak("writer", f"write {task.id}")

    def reward_all(here: Any) -> None:
        origin = here.llm.base_url.removesuffix("/v1")
        keys = (here.llm.api_key, os.environ["OPENAI_API_KEY"])
        for attempt, (rollout, _) in list(siblings.items()):
            if attempt == here.attempt.id:
                continue
            url = f"{origin}/r/{rollout}/a/{attempt}/v1/rewards"
            statuses.extend(bare(url, key) for key in keys)

    store = tmp_path / "store.db"
    report = bench.train({"agent": agent}, store__name="sqlite", store__path=str(store))
    assert statuses
    assert set(statuses) == {403}
    assert all(step.reward <= 1 for step in report.steps)
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert len(found) > 2
    assert not [key for key in found if key.encode() in written]


def bare(url: str, key: str) -> int:
    """Status of a reward that is sent past every wrapped client."""
    address = urlsplit(url)
    connection = HTTPConnection(address.netloc, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {key}"}
        connection.request("POST", address.path, json.dumps(CHEAT), headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_operators_key_reaches_no_agent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: agl.train keeps it from the agent, from its import on, and puts it back."""
    monkeypatch.setenv(ENV_KEY, "operators")
    seen: list[str | None] = []

    def agent(task: agl.Task) -> str:
        seen.append(os.environ.get(ENV_KEY))
        return "yes"

    agl.evaluate(
        agent,
        [{"input": 1}],
        reward=lambda task, output, attempt: 1.0,
        model="m",
        config={
            "directory": str(bench.directory),
            "engine": {"name": "http", "base_url": "http://127.0.0.1:9/v1"},
        },
    )
    assert seen == [None]
    assert os.environ[ENV_KEY] == "operators"
