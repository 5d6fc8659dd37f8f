"""Runs whose rollouts are begun before the weights that train on them are reached."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import agl_core as agl
from agl_core.errors import TrainingError
from agl_core.types import Batch, Update
from tests.core.app.conftest import Bench, speak
from tests.core.bandit_engine import BanditEngine
from tests.core.passing import Signal


class Overlapping(BanditEngine):
    """Trains a copy that calls do not see before it is published."""

    overlaps = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.training = Signal()
        self.answered_meanwhile = Signal()
        self._trained: dict[str, list[float]] = {}

    async def train(self, batch: Batch) -> Update:
        """Ends once a call has been answered by the old version, unless it is the last step."""
        served = self.backends[batch.policy].logits
        before = list(served)
        update = await self.update(batch)
        self._trained[batch.policy], served[:] = list(served), before
        if batch.step == 0:
            self.training.set()
            await self.answered_meanwhile.wait()
        return update

    async def publish(self, policy: str) -> None:
        self.backends[policy].logits[:] = self._trained.pop(policy)


@pytest.fixture
def overlapping(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("tests.core.app.conftest.BanditEngine", Overlapping)
    return bench


def steps_of(bench: Bench) -> list[tuple[int, ...]]:
    """The versions that each step's batch was sampled from."""
    return [batch.versions for batch in bench.engine.batches]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_call_is_older_than_the_bound(bench: Bench, bound: int) -> None:
    report = bench.train(train__steps=6, train__max_staleness=bound)
    found = steps_of(bench)
    assert len(found) == 6
    for step, versions in enumerate(found):
        assert all(max(step - bound, 0) <= version <= step for version in versions)
        assert report.steps[step].metrics["staleness"] == step - min(versions)


def test_every_rollout_is_used_in_its_step_whatever_the_bound(tmp_path: Path) -> None:
    tasks = []
    for bound in (0, 2):
        bench = Bench(tmp_path / str(bound))
        seen: list[tuple[int, str]] = []

        async def notes(task: agl.Task, seen: list[tuple[int, str]] = seen) -> str:
            seen.append((agl.current().rollout.step, task.id))
            return await speak("writer", f"write {task.id}")

        bench.train({"agent": notes}, train__steps=5, train__max_staleness=bound)
        tasks.append(Counter(seen))
    assert tasks[0] == tasks[1]
    assert sum(tasks[0].values()) == 5 * 8


def test_a_slow_rollout_of_one_step_does_not_hold_up_the_next(bench: Bench) -> None:
    """Every attempt of step 0 waits for one of step 1, which no synchronous run would begin."""
    begun = Signal()

    async def waits(task: agl.Task) -> str:
        if agl.current().rollout.step == 1:
            begun.set()
        await begun.wait()
        return await speak("writer", f"write {task.id}")

    report = bench.train({"agent": waits}, train__max_staleness=1, rollout__concurrency=16)
    assert [step.calls for step in report.steps] == [8, 8]


def test_an_engine_that_can_serves_while_it_trains(overlapping: Bench) -> None:
    async def asks_meanwhile(task: agl.Task) -> str:
        engine = overlapping.engine
        assert isinstance(engine, Overlapping)
        if agl.current().rollout.step == 1:
            await engine.training.wait()
            answer = await speak("writer", f"write {task.id}")
            engine.answered_meanwhile.set()
            return answer
        return await speak("writer", f"write {task.id}")

    report = overlapping.train(
        {"agent": asks_meanwhile}, train__max_staleness=1, rollout__concurrency=16
    )
    assert overlapping.engine.overlaps
    assert steps_of(overlapping)[0] == (0,) * 8
    assert 0 in steps_of(overlapping)[1]
    assert [step.metrics["staleness"] for step in report.steps] == [0.0, 1.0]


def test_calls_keep_to_one_version_however_it_is_published(tmp_path: Path) -> None:
    """A synchronous run of either engine samples the same and ends with the same weights."""
    ends = []
    for kind in (BanditEngine, Overlapping):
        bench = Bench(tmp_path / kind.__name__)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.core.app.conftest.BanditEngine", kind)
            patch.setattr(Overlapping, "overlaps", False)
            ends.append(bench.train(train__steps=3).policies["trained"]["sha256_after"])
    assert ends[0] == ends[1]


def test_what_was_begun_for_later_steps_is_counted_when_a_run_is_resumed(bench: Bench) -> None:
    store = {"store__name": "sqlite"}
    failing = {"train__steps": 4, "train__max_staleness": 2, **store}

    class Broken(BanditEngine):
        async def update(self, batch: Batch) -> Update:
            if batch.step == 1:
                raise TrainingError("spoilt")
            return await super().update(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.core.app.conftest.BanditEngine", Broken)
        with pytest.raises(TrainingError, match="spoilt"):
            bench.train(**failing)
    resumed = bench.train(train__resume=True, **failing)
    # At the checkpoint of step 1 the rollouts of steps 1 and 2 were under way; 3 was begun after it.
    assert resumed.lost["rollouts_abandoned"] == 3 * 8
    assert [step.step for step in resumed.steps] == [1, 2, 3, 4]
