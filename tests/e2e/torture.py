"""A run in pieces whose pieces are killed at random moments, and a witness of what was promised."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agl_remote import HttpStore

from agl_core.clocks import new_id
from agl_core.errors import StaleAttemptError
from agl_core.types import (
    AttemptStatus,
    Claim,
    Failure,
    FailureKind,
    Limits,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    Span,
    SpanKind,
    Task,
)
from tests.e2e.processes import KEY, environment, free_ports, settings
from tests.e2e.zygote import Zygote

WITNESS = "witness"
RUNNERS = ("runner-1", "runner-2")
WEIGHTS = {"store": 3, "gateway": 3, "runner-1": 2, "runner-2": 2, "trainer": 2}
"""How often each piece is chosen; a trainer needs some time to get anywhere."""
LONGEST_PAUSE_S = 0.4
BURST = 12
"""Kills after which the run must get on by a step before the next ones."""
OPEN = (RolloutStatus.QUEUED, RolloutStatus.RUNNING)
MOST_OPEN = 6
ENDLESS = 1_000_000


class Storm:
    """The processes of one run, and who was killed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self._zygote = Zygote(environment())
        self.pids: dict[str, int] = {}
        store, gateway = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.store_url = store
        self.database = directory / "store.db"
        self.config = settings(
            directory,
            store={"name": "http", "url": store},
            gateway={"url": gateway},
            algorithm={"group_size": 2},
            train={"steps": ENDLESS, "resume": True},
            rollout={
                "local": False,
                "timeout_s": 60,
                "lease_s": 2.0,
                "max_attempts": ENDLESS,
                "concurrency": 8,
            },
        )
        runner = ["runner", str(self.config)]
        self._arguments = {
            "store": ["store", "serve", str(self.database), "--port", store.rpartition(":")[2]],
            "gateway": ["gateway", "--store", store, "--port", gateway.rpartition(":")[2]],
            "runner-1": runner,
            "runner-2": runner,
            "trainer": ["train", str(self.config)],
        }

    def start_all(self) -> None:
        for name in self._arguments:
            self.start(name)

    def start(self, name: str, *further: str) -> None:
        arguments = [*self._arguments[name], *further]
        self.log(name).touch()
        self.pids[name] = self._zygote.start(arguments, self.log(name))

    def kill_one(self) -> None:
        """kill -9 whichever, and start it again at once."""
        name = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.check(name)
        os.kill(self.pids[name], signal.SIGKILL)
        status = self._zygote.wait(self.pids[name])
        assert status == -signal.SIGKILL, self.tail(name)
        self.kills[name] += 1
        self.start(name)

    def check(self, name: str) -> None:
        """No piece ends by itself, whatever happens to the others."""
        status = self._zygote.poll(self.pids[name])
        assert status is None, f"{name} ended with {status}:\n{self.tail(name)}"

    def end(self, name: str) -> int:
        """As an operator ends it; returns its status."""
        os.kill(self.pids[name], signal.SIGTERM)
        return self._zygote.wait(self.pids.pop(name))

    def finished(self, name: str) -> bool:
        """Whether it has ended well; any other end is none."""
        status = self._zygote.poll(self.pids[name])
        assert status in (None, 0), f"{name} ended with {status}:\n{self.tail(name)}"
        if status == 0:
            del self.pids[name]
        return status == 0

    def close(self) -> None:
        self._zygote.close()

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def tail(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")[-4000:]

    @property
    def run(self) -> Path:
        return self.directory / "runs" / "run"

    async def rage(self, kills: int) -> None:
        """Kill that often; between bursts, all pieces that were started again do their work."""
        while self.kills.total() < kills:
            await asyncio.sleep(self.random.uniform(0, LONGEST_PAUSE_S))
            self.kill_one()
            if self.kills.total() % BURST == 0:
                await self._get_on()

    async def _get_on(self) -> None:
        step = self.newest_checkpoint()["step"]
        while self.newest_checkpoint()["step"] == step:
            for name in self.pids:
                self.check(name)
            await asyncio.sleep(0.02)

    def newest_checkpoint(self) -> dict[str, Any]:
        states = sorted(self.run.glob("checkpoints/step-*/state.json"))
        return json.loads(states[-1].read_bytes()) if states else {"step": 0}


@dataclass(slots=True)
class Witness:
    """Uses the store as a trainer and as a runner, and remembers all that was acknowledged."""

    url: str
    queued: set[str] = field(default_factory=set)
    """Ids of rollouts."""
    spans: dict[str, str] = field(default_factory=dict)
    """Id to the attempt it belongs to."""
    finished: dict[str, str] = field(default_factory=dict)
    """Attempt id to its output."""
    fences: dict[str, list[int]] = field(default_factory=dict)
    """Rollout id to the fences seen, in order."""
    stale: int = 0

    async def run(self) -> None:
        """Until cancelled, between two writes."""
        store = HttpStore(self.url, KEY)
        await store.open()
        try:
            while True:
                await self._queue(store)
                for claim in await store.claim(WITNESS, limit=1, timeout_s=0.2):
                    await self._serve(store, claim)
        finally:
            await store.close()

    async def _queue(self, store: HttpStore) -> None:
        """Few at a time: those of the run stand behind them in the queue."""
        waiting = RolloutQuery(run_id=WITNESS, statuses=OPEN, limit=MOST_OPEN)
        if len(await store.rollouts(waiting)) == MOST_OPEN:
            return
        batch = [
            Rollout(
                id=new_id("ro"),
                task=Task(id=f"w{number}", input=number),
                run_id=WITNESS,
                limits=Limits(timeout_s=60, lease_s=2, max_attempts=ENDLESS),
                created_at=time.time(),
            )
            for number in range(2)
        ]
        self.queued |= {rollout.id for rollout in await store.enqueue(batch)}

    async def _serve(self, store: HttpStore, claim: Claim) -> None:
        attempt = claim.attempt
        self.fences.setdefault(claim.rollout.id, []).append(attempt.fence)
        try:
            if claim.rollout.run_id != WITNESS:
                gone = Failure(kind=FailureKind.LOST, message="not the witness's")
                await store.finish(attempt.id, status=AttemptStatus.LOST, failure=gone)
                return
            early, late = (self._span(claim) for _ in range(2))
            told = await store.add_spans([early])
            if told.accepted + told.duplicate:
                self.spans[early.id] = attempt.id
            output = new_id("output")
            await store.finish(
                attempt.id, status=AttemptStatus.SUCCEEDED, spans=[late], output=output
            )
        except StaleAttemptError:
            self.stale += 1
            return
        self.spans[late.id] = attempt.id
        self.finished[attempt.id] = output

    def _span(self, claim: Claim) -> Span:
        return Span(
            id=new_id("span"),
            rollout_id=claim.rollout.id,
            attempt_id=claim.attempt.id,
            kind=SpanKind.MESSAGE,
            name="witness",
        )


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and let it end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
