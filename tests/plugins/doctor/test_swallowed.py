"""A prompt that does not fit, and an agent that says nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import agl_core as agl
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, FailureKind, RolloutQuery
from tests.core.app.conftest import ask


async def plain(task: agl.Task) -> str:
    with agl.agent_scope("writer"):
        return (await ask("x" * 300))["content"]


async def takes_it_for_an_answer(task: agl.Task) -> str:
    try:
        return await plain(task)
    except httpx.HTTPStatusError:
        return "no idea"


async def keeps_no_word(task: agl.Task) -> str:
    try:
        return await plain(task)
    except httpx.HTTPStatusError:
        pass
    raise RuntimeError("the team failed")


async def goes_on(task: agl.Task) -> str:
    await takes_it_for_an_answer(task)
    with agl.agent_scope("writer"):
        return (await ask("hi"))["content"]


@pytest.mark.parametrize("agent", [takes_it_for_an_answer, keeps_no_word])
def test_an_attempt_that_says_nothing_of_it_is_no_empty_trajectory(clinic: Any, agent: Any) -> None:
    records = attempts(clinic, agent)
    assert {record.failure.kind for record in records} == {FailureKind.CONTEXT_OVERFLOW}
    assert all("context_length_exceeded" in record.failure.message for record in records)
    assert {record.status for record in records} == {AttemptStatus.FAILED}


def test_an_agent_that_gets_along_without_the_call_has_not_failed(clinic: Any) -> None:
    assert {attempt.status for attempt in attempts(clinic, goes_on)} == {AttemptStatus.SUCCEEDED}


def attempts(clinic: Any, agent: Any) -> list[agl.Attempt]:
    clinic.options["max_model_len"] = 200
    clinic.diagnose(agent, store__name="sqlite")
    return asyncio.run(stored(next(clinic.directory.rglob("store.db"))))


async def stored(path: Path) -> list[Any]:
    store = SqliteStore(path)
    await store.open()
    try:
        return [rollout.attempt for rollout in await store.rollouts(RolloutQuery())]
    finally:
        await store.close()
