"""kill -9 of everything at random moments: nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from agl_remote import HttpStore

from agl_core._builtin import load_plugins
from agl_core.app import App
from agl_core.config.loader import load_config
from agl_core.store._sqlite import SqliteStore
from agl_core.types import Rollout, RolloutQuery, Span
from tests.e2e.processes import KEY
from tests.e2e.torture import OPEN, RUNNERS, WITNESS, Storm, Witness, ended

_log = logging.getLogger(__name__)

KILLS = int(os.environ.get("AGL_TORTURE_KILLS", "240"))
SEED = int(os.environ.get("AGL_TORTURE_SEED", "1"))
LONGEST_S = 120 + 2.0 * KILLS

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="forks and kills"),
    pytest.mark.slow,
    pytest.mark.timeout(LONGEST_S),
]


class Cleanup:
    """What is in the store once all is over, and in the report."""

    def __init__(self, storm: Storm, witness: Witness, report: dict[str, Any]) -> None:
        self.storm, self.witness, self.report = storm, witness, report
        self.rollouts: list[Rollout] = []
        self.spans: list[Span] = []

    async def read(self) -> None:
        store = SqliteStore(self.storm.database, orphans="keep")
        await store.open()
        try:
            while page := await store.rollouts(RolloutQuery(after_id=self._last())):
                self.rollouts += page
                self.spans += await store.spans([rollout.id for rollout in page])
        finally:
            await store.close()

    def _last(self) -> str | None:
        return self.rollouts[-1].id if self.rollouts else None

    @property
    def trained(self) -> list[Rollout]:
        """Of the steps as they are in the report: the newest of each."""
        size = self.report["steps"][0]["rollouts"]
        by_step: dict[int, list[Rollout]] = {}
        for rollout in self.of_the_run:
            by_step.setdefault(rollout.step, []).append(rollout)
        return [rollout for step in sorted(by_step) for rollout in by_step[step][-size:]]

    @property
    def of_the_run(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.run_id != WITNESS]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Cleanup:
    storm = Storm(tmp_path_factory.mktemp("torture"), SEED)
    try:
        return asyncio.run(_live_through(storm))
    finally:
        storm.close()


def test_whatever_fails_no_piece_outlives_the_storm(tmp_path: Path) -> None:
    storm = Storm(tmp_path, SEED)
    try:
        storm.start("store")
        while "http://" not in storm.tail("store"):
            storm.check("store")
        store = ("127.0.0.1", int(storm.store_url.rpartition(":")[2]))
        socket.create_connection(store).close()
        storm.start("gateway")
        os.kill(storm.pids["gateway"], signal.SIGKILL)
        with pytest.raises(AssertionError, match="gateway ended with -9"):
            _for_ever(storm.check, "gateway")
    finally:
        storm.close()
    with pytest.raises(ConnectionRefusedError):
        _for_ever(_connect, store)


def _connect(address: tuple[str, int]) -> None:
    with suppress(ConnectionResetError):  # its socket is closed just now
        socket.create_connection(address).close()


def _for_ever(act: Callable[..., object], *arguments: object) -> NoReturn:
    while True:
        act(*arguments)


async def _live_through(storm: Storm) -> Cleanup:
    storm.start_all()
    witness = Witness(storm.store_url)
    witnessing = asyncio.create_task(witness.run())
    began = time.monotonic()
    await storm.rage(KILLS)
    wall_s = time.monotonic() - began
    assert not witnessing.done(), await witnessing
    await ended(witnessing)
    await _all_final(storm, WITNESS)  # while there is a trainer still, who serves its agents
    await _finish_training(storm)
    await _all_final(storm, "run")
    for name in (*RUNNERS, "gateway", "store"):
        assert storm.end(name) == 130, storm.tail(name)
    report = json.loads((storm.run / "report.json").read_bytes())
    _log.info("%s killed in %.0f s, lost %s", dict(storm.kills), wall_s, report["lost"])
    aftermath = Cleanup(storm, witness, report)
    await aftermath.read()
    return aftermath


async def _finish_training(storm: Storm) -> None:
    """End the trainer in order, and let the next one take two more steps."""
    assert storm.end("trainer") == 130, storm.tail("trainer")
    steps = storm.newest_checkpoint()["step"] + 2
    storm.start("trainer", "--set", f"train.steps={steps}")
    while not storm.finished("trainer"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def _all_final(storm: Storm, run_id: str) -> None:
    """The runners end what is queued still."""
    store = HttpStore(storm.store_url, KEY)
    await store.open()
    try:
        while await store.rollouts(RolloutQuery(run_id=run_id, statuses=OPEN, limit=1)):
            for name in (*RUNNERS, "gateway", "store"):
                storm.check(name)
            await asyncio.sleep(0.1)
    finally:
        await store.close()


def test_every_piece_was_killed(aftermath: Cleanup) -> None:
    assert aftermath.storm.kills.total() == KILLS
    assert set(aftermath.storm.kills) == {"store", "gateway", "trainer", *RUNNERS}


def test_the_file_is_sound(aftermath: Cleanup) -> None:
    with sqlite3.connect(aftermath.storm.database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_no_rollout_is_stuck(aftermath: Cleanup) -> None:
    assert Counter(rollout.status.final for rollout in aftermath.rollouts).keys() == {True}
    for rollout in aftermath.rollouts:
        assert all(attempt.status.final and attempt.sealed for attempt in rollout.attempts)


def test_fences_count_up_by_one(aftermath: Cleanup) -> None:
    for rollout in aftermath.rollouts:
        fences = [attempt.fence for attempt in rollout.attempts]
        assert fences == list(range(1, len(fences) + 1))
    for fences in aftermath.witness.fences.values():
        assert fences == sorted(set(fences))


def test_what_was_acknowledged_is_there_once(aftermath: Cleanup) -> None:
    witness = aftermath.witness
    assert len(witness.queued) > KILLS / 10
    found = Counter(rollout.id for rollout in aftermath.rollouts)
    assert {found[rollout_id] for rollout_id in witness.queued} == {1}
    spans = Counter(span.id for span in aftermath.spans)
    assert max(spans.values()) == 1
    owners = {span.id: span.attempt_id for span in aftermath.spans}
    assert {span_id: owners.get(span_id) for span_id in witness.spans} == witness.spans
    outputs = {
        attempt.id: attempt.output for rollout in aftermath.rollouts for attempt in rollout.attempts
    }
    assert {each: outputs.get(each) for each in witness.finished} == witness.finished


def test_the_run_took_every_step_once(aftermath: Cleanup) -> None:
    steps = [step["step"] for step in aftermath.report["steps"]]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 2


def test_losses_are_counted_and_sum_up(aftermath: Cleanup) -> None:
    report, lost = aftermath.report, aftermath.report["lost"]
    used = sum(step["rollouts"] for step in report["steps"])
    assert lost.get("rollouts_abandoned", 0) == len(aftermath.of_the_run) - used
    retried: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for rollout in aftermath.trained:
        *earlier, last = rollout.attempts
        retried.update(attempt.failure.kind.value for attempt in earlier)
        if last.failure is not None:
            dropped[last.failure.kind.value] += 1
    for prefix, counts in (("attempts_retried_", retried), ("attempts_dropped_", dropped)):
        told = {cause.removeprefix(prefix): n for cause, n in lost.items() if prefix in cause}
        assert told == dict(counts)


def test_the_weights_are_those_of_a_run_that_nobody_killed(
    aftermath: Cleanup, tmp_path: Path
) -> None:
    assert not [cause for cause in aftermath.report["lost"] if "dropped" in cause]
    config = load_config(
        aftermath.storm.config,
        [
            f"directory={tmp_path}",
            "store.name=memory",
            "store.url=null",
            "gateway.url=null",
            "rollout.local=true",
            "train.resume=false",
            f"train.steps={len(aftermath.report['steps'])}",
        ],
    )
    calm = asyncio.run(App(config, plugins=load_plugins(config.plugins)).train())
    told = [step["reward"] for step in aftermath.report["steps"]]
    assert [step.reward for step in calm.steps] == told
    end = "sha256_after"
    assert calm.policies["trained"][end] == aftermath.report["policies"]["trained"][end]
