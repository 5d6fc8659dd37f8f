"""Processes that write to one store and are killed: what was acknowledged is there, once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, FailureKind, RolloutQuery, RolloutStatus

KILLS = int(os.environ.get("AGL_TORTURE_KILLS", "300"))
"""``tox -m full`` sets more."""
SEED = 20_240_229
EVERYTHING = RolloutQuery(limit=10_000_000)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


class Writers:
    """Starts and kills processes."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "store.db", folder / "log"
        self._forker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("store_writer.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *, seed: int, steps: int | None) -> int:
        order = {"path": str(self.path), "log": str(self.log), "seed": seed, "steps": steps}
        return self._ask(order)

    def killed(self, pid: int) -> bool:
        return self._ask({"wait": pid}) == -signal.SIGKILL

    def close(self) -> None:
        self._forker.stdin.close()
        self._forker.wait()
        self._forker.stdout.close()

    def _ask(self, order: dict) -> int:
        self._forker.stdin.write(json.dumps(order) + "\n")
        self._forker.stdin.flush()
        return int(self._forker.stdout.readline())

    def notes(self) -> dict[str, list[list]]:
        """All that were written to their end, which is the bracket."""
        found = defaultdict(list)
        for line in self.log.read_text().splitlines():
            if line.endswith("]"):
                kind, *ids = json.loads(line)
                found[kind].append(ids)
        return found


@pytest.fixture
def writers(tmp_path):
    writers = Writers(tmp_path)
    yield writers
    writers.close()


def torture(writers: Writers) -> None:
    """Kill one or two processes at a time, from outside or from within, until it is enough."""
    chance = random.Random(SEED)
    kills = 0
    while kills < KILLS:
        steps = [
            None if chance.random() < 0.5 else int(10 ** chance.uniform(0, 3.5))
            for _ in range(chance.choice([1, 1, 2]))
        ]
        pids = [writers.start(seed=chance.getrandbits(32), steps=each) for each in steps]
        for pid, each in zip(pids, steps, strict=True):
            if each is None:
                time.sleep(chance.uniform(0, 0.08))
                os.kill(pid, signal.SIGKILL)
        assert [pid for pid in pids if not writers.killed(pid)] == []
        kills += len(pids)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_killed_writers_lose_double_and_block_nothing(writers):
    torture(writers)
    notes = writers.notes()
    store = SqliteStore(writers.path)
    await store.open()
    check_states(notes, await store.rollouts(EVERYTHING))
    await check_records(notes, store)
    await end_the_run(store)
    check_states(notes, await store.rollouts(EVERYTHING))
    await store.close()
    connection = sqlite3.connect(writers.path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def check_states(notes, rollouts):
    ids = Counter(rollout.id for rollout in rollouts)
    assert set(ids.values()) == {1}
    for batch in notes["queued"]:
        assert ids.keys() >= set(batch)
    for batch in notes["asked"]:
        assert len(ids.keys() & set(batch)) in (0, len(batch))
    attempts = {}
    for rollout in rollouts:
        fences = [attempt.fence for attempt in rollout.attempts]
        assert fences == list(range(1, len(fences) + 1))
        running = [attempt for attempt in rollout.attempts if not attempt.status.final]
        assert running == ([rollout.attempts[-1]] if rollout.status.value == "running" else [])
        attempts.update({attempt.id: (rollout, attempt) for attempt in rollout.attempts})
    for batch in notes["claimed"]:
        assert attempts.keys() >= set(batch)
    for rollout_id, attempt_id, *_ in notes["finished"]:
        rollout, attempt = attempts[attempt_id]
        assert (rollout.id, rollout.status) == (rollout_id, RolloutStatus.SUCCEEDED)
        assert attempt.status is AttemptStatus.SUCCEEDED
        assert rollout.attempts[-1] is attempt
    for _, attempt_id in notes["failed"]:
        assert attempts[attempt_id][1].failure.kind is FailureKind.ENGINE
    lost = [one for _, one in attempts.values() if one.status is AttemptStatus.LOST]
    assert len(lost) > KILLS / 10
    assert {one.failure.kind for one in lost} == {FailureKind.LOST}


async def check_records(notes, store):
    rollouts = await store.rollouts(EVERYTHING)
    stored = {}
    for rollout in rollouts:
        ids = [span.id for span in await store.spans([rollout.id])]
        assert len(set(ids)) == len(ids)
        stored[rollout.id] = set(ids)
        for attempt in rollout.attempts:
            # Its output names the spans that were finished with it: both are there, or neither.
            assert stored[rollout.id] >= set(attempt.output or [])
    for rollout_id, *ids in notes["recorded"]:
        assert stored[rollout_id] >= set(ids)
    for rollout_id, _, *ids in notes["finished"]:
        assert stored[rollout_id] >= set(ids)
    for version, text in notes["published"]:
        assert (await store.resources(version)).items["prompt"].template == text
    versions = [version for version, _ in notes["published"]]
    assert len(set(versions)) == len(versions)


async def end_the_run(store):
    """What the next trainer does: run what is left to its end."""
    while claims := await store.claim("last", limit=500, timeout_s=0):
        for claim in claims:
            await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    ids = [rollout.id for rollout in await store.rollouts(EVERYTHING)]
    assert len(await store.wait(ids, timeout_s=60)) == len(ids)
