"""The plugin through the contracts that agl-core ships."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from agl_testing.algorithm_contract import AlgorithmContract
from agl_testing.attempts import ScriptedAttempt
from agl_testing.engine_contract import EngineContract
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.reward_contract import RewardContract
from agl_testing.scenario import (
    JUDGE,
    PLANNER,
    SYSTEM,
    TOOL,
    TOOL_RESULT,
    WRITER,
    Job,
    ScenarioProgram,
)
from agl_testing.store_contract import StoreContract
from parley import Speaker, Tool
from parley_agl.concise import Concise
from parley_agl.integration import ParleyIntegration
from parley_agl.phrases import (
    FIRST_WORD,
    WEIGHTS,
    LossOptions,
    PhrasesEngine,
    PhrasesOptions,
    PolicyGradient,
)
from parley_agl.rank import Rank, RankOptions, rank_advantages
from parley_agl.snapshot import SnapshotOptions, SnapshotStore, make_store

from agl_core import AttemptRecord, Resources
from agl_core.interfaces import AlgorithmSetup
from agl_core.store import Records
from agl_core.types import Policy


def _speaker(job: Job, name: str, *tools: Tool) -> Speaker:
    return Speaker(name, job.model(name), job.base_url, job.api_key, SYSTEM, tools)


def _planner(job: Job) -> Speaker:
    return _speaker(job, PLANNER, Tool(TOOL, lambda _: TOOL_RESULT))


class ParleyProgram(ScenarioProgram):
    """The scenario in Parley."""

    lacks: ClassVar = {
        "stream": "Parley does not stream",
        "astream": "Parley does not stream",
        "structured": "Parley's answers are plain text",
    }
    sends_once = "Parley leaves that to who speaks"
    hides_usage = "Parley does not keep what a model took"

    def run(self, job: Job) -> str:
        return _speaker(job, WRITER).say(_planner(job).say(job.question))

    async def arun(self, job: Job) -> str:
        return await _speaker(job, WRITER).asay(await _planner(job).asay(job.question))

    async def parallel(self, job: Job) -> list[str]:
        speakers = (_speaker(job, PLANNER), _speaker(job, WRITER))
        return list(await asyncio.gather(*(each.asay(job.question) for each in speakers)))

    def delegate(self, job: Job) -> str:
        writer = Tool(TOOL, lambda item: _speaker(job, WRITER).say(item))
        return _speaker(job, PLANNER, writer).say(job.question)

    def judge(self, job: Job) -> str:
        def review(item: str) -> str:
            body = {"model": job.model(JUDGE), "messages": [{"role": "user", "content": item}]}
            headers = {"authorization": f"Bearer {job.api_key}"}
            answer = httpx.post(
                f"{job.base_url}/chat/completions", json=body, headers=headers, timeout=60
            )
            return answer.json()["choices"][0]["message"]["content"]

        return _speaker(job, PLANNER, Tool(TOOL, review)).say(job.question)

    def fail(self, job: Job, error: Exception) -> str:
        def broken(_item: str) -> str:
            raise error

        return _speaker(job, PLANNER, Tool(TOOL, broken)).say(job.question)


class TestPlugin(PluginContract):
    plugin = "parley_agl.plugin"
    frameworks = ("parley", "httpx")


class TestIntegration(IntegrationContract):
    package = "parley_agl"
    frameworks = ("parley",)

    def integration(self) -> ParleyIntegration:
        return ParleyIntegration()

    def program(self) -> ParleyProgram:
        return ParleyProgram()

    def framework_state(self) -> list[object]:
        return list(Speaker.around)


class TestReward(RewardContract):
    @pytest.fixture
    def reward(self) -> Concise:
        return Concise(words=2)

    @pytest.fixture
    def records(self) -> list[AttemptRecord]:
        return [_record("1", "seven"), _record("2", "it is eight"), _record("3", "it is seven now")]


class TestAlgorithm(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: Rank(RankOptions())


class TestEngine(EngineContract):
    tolerance = 1e-9

    @pytest.fixture
    def policy(self) -> Policy:
        return Policy(name="speaker", model="parrot", trainable=True)

    @pytest.fixture
    async def engine(self, policy: Policy) -> AsyncIterator[PhrasesEngine]:
        def loss() -> PolicyGradient:
            return PolicyGradient(LossOptions())

        setup = AlgorithmSetup(name="rank", loss_factory=loss, lr=1.0)
        engine = PhrasesEngine(PhrasesOptions(words=tuple("abcdefghijklmnop")), setup)
        await engine.start([policy])
        yield engine
        await engine.stop()

    @pytest.fixture
    def recompute(self) -> Callable[..., list[float]]:
        return recomputed

    @pytest.fixture
    def under_way(self, engine: PhrasesEngine) -> Callable[[], Awaitable[int]]:
        async def count() -> int:
            return engine.backend("speaker").under_way

        return count


def recomputed(
    directory: str, prompt: Sequence[int], answer: Sequence[int], temperature: float
) -> list[float]:
    """By the saved file alone."""
    first, later = json.loads((Path(directory) / WEIGHTS).read_text(encoding="utf-8"))
    found = []
    for place, token in enumerate(answer):
        powers = [math.exp(logit / temperature) for logit in (later if place else first)]
        found.append(math.log(powers[token - FIRST_WORD] / sum(powers)))
    return found


class TestStore(StoreContract):
    durable = True

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SnapshotStore]:
        async with opened(SnapshotStore(tmp_path / "records")) as store:
            yield store

    @pytest.fixture
    async def dropping_store(self, tmp_path: Path) -> AsyncIterator[SnapshotStore]:
        options = SnapshotOptions(retention="drop_spans")
        async with opened(make_store(options, tmp_path)) as store:
            yield store

    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Any]:
        again = SnapshotStore(tmp_path / "records")

        async def take_over(store: SnapshotStore) -> SnapshotStore:
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


@asynccontextmanager
async def opened(store: SnapshotStore) -> AsyncGenerator[SnapshotStore, None]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_a_write_that_fails_leaves_file_and_records_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with opened(SnapshotStore(file)) as store:
        await store.publish(Resources())
        before = file.read_bytes()

        def work(records: Records) -> None:
            records.add_resources(Resources(version=2))
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await store.write(work)
        assert await store.read(lambda records: records.latest_version()) == 1
    assert file.read_bytes() == before


def _record(name: str, output: str) -> AttemptRecord:
    script = ScriptedAttempt(name, expected="seven")
    script.call("writer", [1, 2], [3])
    return script.record(output=output)


def test_length_costs_and_never_more_than_there_is() -> None:
    record = _record("1", "")
    reward = Concise(words=2, cost=0.25)
    task = record.rollout.task
    assert reward(task, "seven", record) == 1.0
    assert reward(task, "it is seven then", record) == 0.5
    assert reward(task, "seven" + " or so" * 20, record) == 0.0
    assert reward(task, "eight", record) == 0.0


def test_ranks_do_not_depend_on_the_scale() -> None:
    assert rank_advantages([0.0, 100.0, 0.5]) == [-1.0, 1.0, 0.0]
    assert rank_advantages([1.0, 1.0, 2.0]) == [-0.5, -0.5, 1.0]
