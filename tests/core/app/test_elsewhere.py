"""Programs whose clients were made before the run: what of their requests reaches the gateway."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import agl_core as agl
from agl_core.errors import TrainingError
from agl_core.testing.fake_openai import FakeOpenAI
from tests.core.app.conftest import Bench

ASK: Any = {"model": "gpt-x", "messages": [{"role": "user", "content": "Well?"}]}


class Program:
    """Two agents with clients of their own, as at import."""

    def __init__(self, base_url: str) -> None:
        self.llm = openai.OpenAI(base_url=base_url, api_key="the-user's-own")

    def run(self, task: agl.Task) -> str | None:
        self.ask("planner")
        return self.ask("writer")

    def ask(self, agent: str) -> str | None:
        with agl.agent_scope(agent):
            return self.llm.chat.completions.create(**ASK).choices[0].message.content


@pytest.fixture
def provider() -> Any:
    with FakeOpenAI(lambda body: "from the provider") as server:
        yield server


@pytest.fixture
def program(provider: FakeOpenAI) -> Any:
    program = Program(provider.base_url)
    yield program
    program.llm.close()


def address(provider: FakeOpenAI) -> str:
    return provider.base_url.removeprefix("http://").removesuffix("/v1")


def test_a_client_made_at_import_is_trained(
    bench: Bench, program: Program, provider: FakeOpenAI
) -> None:
    """G3, C2: the trained agent's requests are rerouted, the other's are sent and counted."""
    report = bench.train({"agent": program.run}, train__steps=1)
    (batch,) = bench.engine.batches
    assert len(batch.call_ids) == 8
    assert len(provider.log) == 8
    assert report.lost[f"sent_elsewhere_by_planner_to_{address(provider)}"] == 8


def test_a_client_made_at_import_is_evaluated(
    bench: Bench, program: Program, provider: FakeOpenAI
) -> None:
    """G3: an evaluation asks the model that is evaluated."""

    def run_agent(task: agl.Task) -> str | None:
        return program.ask("writer")

    bench.train({"agent": run_agent, "val_tasks": [{"input": 1}]}, train__steps=1)
    assert provider.log == []


def test_requests_elsewhere_can_be_forbidden_for_a_run(
    bench: Bench, program: Program, provider: FakeOpenAI
) -> None:
    """C2: `capture.elsewhere`."""
    with pytest.raises(TrainingError, match=r"capture.*allow_hosts"):
        bench.train({"agent": program.run}, train__steps=1, capture__elsewhere="refuse")
    assert provider.log == []
