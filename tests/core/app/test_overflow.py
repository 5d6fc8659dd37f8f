"""A prompt beyond the model's context ends its attempt, however the agent or its framework takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agl_budget import PromptBudget
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

import agl_core as agl
from agl_core.store._sqlite import SqliteStore
from agl_core.types import FailureKind, RolloutQuery
from tests.core.app.conftest import ask

LONG = "x" * 300
OPTIONS = {"openai": FakeOptions(max_model_len=200), "vllm": FakeOptions(max_model_len=200, overflow_code=400)}  # fmt: skip


@pytest.fixture(params=sorted(OPTIONS))
def server(request: Any) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(options=OPTIONS[request.param]) as fake:
        yield fake


async def plain(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        return (await ask(LONG))["content"]


async def after_a_good_turn(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        await ask("hi")
        return (await ask(LONG))["content"]


async def streamed(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        return (await ask(LONG, stream=True))["content"]


async def cut_beyond_help(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        budget = PromptBudget(20, count=lambda messages, tools: len(str(messages)))
        messages = await budget.afit([{"role": "user", "content": LONG}])
        return (await ask(messages))["content"]


def scored(agent: Any, server: FakeOpenAI, directory: Path) -> agl.Evaluation:
    return agl.evaluate(
        agent,
        [{"input": 1}],
        model=server.base_url,
        reward=lambda task, output, attempt: 1.0,
        config={"name": "run", "directory": str(directory)},
    )


async def failures(path: Path) -> list[Any]:
    store = SqliteStore(path)
    await store.open()
    try:
        rollouts = await store.rollouts(RolloutQuery())
        calls = [span.call for span in await store.spans([r.id for r in rollouts]) if span.call]
    finally:
        await store.close()
    return [*(rollout.attempt.failure for rollout in rollouts), *(call.error for call in calls)]


@pytest.mark.parametrize("agent", [plain, after_a_good_turn, streamed])
def test_it_is_recorded_on_the_rollout_with_the_backends_words(
    server: FakeOpenAI, tmp_path: Path, agent: Any
) -> None:
    evaluation = scored(agent, server, tmp_path)
    assert evaluation.failed == {"context_overflow": 1}
    failure, *errors = asyncio.run(failures(next(tmp_path.rglob("store.db"))))
    assert failure.kind is FailureKind.CONTEXT_OVERFLOW
    assert "maximum context length is 200 tokens" in errors[-1]


def test_a_budget_that_nothing_fits_into_ends_the_same(tmp_path: Path) -> None:
    with FakeOpenAI() as server:
        evaluation = scored(cut_beyond_help, server, tmp_path)
    assert evaluation.failed == {"context_overflow": 1}
    (failure,) = asyncio.run(failures(next(tmp_path.rglob("store.db"))))
    assert failure.type == "agl_core.errors.ContextOverflowError"
    assert "'writer'" in failure.message
