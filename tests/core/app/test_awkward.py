"""Text that UTF-8 has no form for, wherever a program may put it: the run goes on and keeps it."""

import asyncio
import json
from typing import Any

import pytest

import agl_core as agl
from agl_core.store._sqlite import SqliteStore
from agl_core.types import RolloutQuery, RolloutStatus, SpanKind
from tests.core.app.conftest import Bench, speak

AWKWARD = "NUL \x00, lone \ud83d and \udfff, both \U0001f600, line\r\n\u2028"
ESCAPED = AWKWARD.encode("utf-8", "backslashreplace").decode()
"""As what programs emit and give back is kept."""


def tasks(n: int = 4) -> list[dict[str, Any]]:
    return [{"id": f"{i}{AWKWARD}", "input": {AWKWARD: AWKWARD}} for i in range(n)]


async def agent(task: agl.Task) -> Any:
    assert task.input == {AWKWARD: AWKWARD}
    with agl.operation(AWKWARD, text=AWKWARD):
        agl.emit_message(AWKWARD, role=AWKWARD)
    answer = await speak("writer", "hello")
    await speak(AWKWARD, "hello")
    with agl.agent_scope(AWKWARD):
        agl.emit_object({AWKWARD: AWKWARD}, name=AWKWARD)
        agl.emit_exception(ValueError(AWKWARD))
    return {AWKWARD: answer}


async def failing(task: agl.Task) -> Any:
    await agent(task)
    if task.id.startswith("0"):
        raise ValueError(AWKWARD)


def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> Any:
    return {AWKWARD: 1.0}


async def stored(bench: Bench) -> tuple[list[agl.Rollout], list[agl.Span]]:
    store = SqliteStore(bench.directory / "bench" / "store.db")
    await store.open()
    rollouts = await store.rollouts(RolloutQuery())
    spans = await store.spans([rollout.id for rollout in rollouts])
    await store.close()
    return rollouts, spans


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_run_keeps_whatever_text_there_is(bench: Bench, store: str) -> None:
    inputs = {"agent": agent, "reward": reward, "tasks": tasks()}
    report = bench.train(inputs, store__name=store, train__steps=2)
    assert report.calls == 32
    assert not any(step.failures for step in report.steps)
    assert report.steps[-1].channels[AWKWARD] == 1.0
    if store == "memory":
        return
    resumed = bench.train(inputs, store__name=store, train__steps=3, train__resume=True)
    assert [step.channels for step in resumed.steps] == [{AWKWARD: 1.0}] * 3
    written = json.loads((bench.directory / "bench" / "report.json").read_text())
    assert written["steps"][0]["channels"] == {AWKWARD: 1.0}
    rollouts, spans = asyncio.run(stored(bench))
    assert {rollout.status for rollout in rollouts} == {RolloutStatus.SUCCEEDED}
    assert all(set(rollout.attempts[-1].output) == {ESCAPED} for rollout in rollouts)
    agents = {span.agent for span in spans}
    assert {"writer", AWKWARD} <= agents
    channels = {span.reward.channel for span in spans if span.kind is SpanKind.REWARD}
    assert channels == {AWKWARD}
    objects = [span for span in spans if span.name == ESCAPED and span.attributes]
    assert {ESCAPED} <= {key for span in objects for key in _texts(span.attributes)}


def test_an_error_message_of_any_text_is_kept(bench: Bench) -> None:
    inputs = {"agent": failing, "reward": reward, "tasks": tasks()}
    report = bench.train(
        inputs,
        store__name="sqlite",
        train__steps=1,
        train__tasks_per_step=4,
        capture__max_error_share=1.0,
    )
    assert report.steps[0].failures == {"agent": 4}
    rollouts, _ = asyncio.run(stored(bench))
    messages = {one.attempts[-1].failure.message for one in rollouts if one.attempts[-1].failure}
    assert len(messages) == 1
    assert AWKWARD in messages.pop()


def _texts(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        return set(tree) | {text for item in tree.values() for text in _texts(item)}
    return {tree} if isinstance(tree, str) else set()
