"""An agent that uses Anthropic's client, evaluated through the gateway of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anthropic
from agl_testing.fake_openai import FakeOpenAI

import agl_core as agl


async def agent(task: agl.Task) -> str:
    """Ask once as ``writer`` with the address of the attempt's gateway."""
    gateway = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=gateway, api_key="mine") as client:
        with agl.agent_scope("writer"):
            answer = await client.messages.create(
                model="claude-x",
                max_tokens=64,
                messages=[{"role": "user", "content": str(task.input)}],
            )
    return answer.content[0].text


def test_its_calls_are_recorded_for_the_agent(tmp_path: Path) -> None:
    seen: list[Any] = []

    def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> float:
        seen.append([(call.agent, call.answer) for call in attempt.calls])
        return float(output == str(task.input))

    with FakeOpenAI() as server:
        evaluation = agl.evaluate(
            agent,
            [{"input": "one"}, {"input": "two"}],
            reward=reward,
            config={
                "directory": str(tmp_path),
                "engine": {"name": "http", "base_url": server.base_url},
                "model": "m",
            },
            progress=False,
        )
    assert evaluation.score.mean == 1.0
    assert sorted(seen) == [[("writer", "one")], [("writer", "two")]]
