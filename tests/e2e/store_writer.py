"""Forks processes that write to one store until they are killed: far cheaper than to start them.

Each line of JSON on standard input is answered by one on standard output: ``{"wait": pid}`` by the
exit status, anything else by the id of a new process. That one has the ``path`` of the store, the
``log`` where it notes what the store acknowledged, its ``seed``, and ``steps``: null to be killed
from outside, or the number of SQLite's own steps, in hundreds, after which it kills itself in the
middle of whatever it is doing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import traceback

from agl_core.clocks import new_id
from agl_core.store import _sqlite as sqlite_module
from agl_core.store._sqlite import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Failure,
    FailureKind,
    Limits,
    PromptTemplate,
    Resources,
    Rollout,
    Span,
    SpanKind,
    Task,
)

LIMITS = Limits(timeout_s=600, lease_s=300, max_attempts=2)


class Writer:
    """One process's life."""

    def __init__(self, order):
        self.random = random.Random(order["seed"])
        self.log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.store = SqliteStore(order["path"], busy_timeout_s=60)
        self.claims = []

    def note(self, kind, *ids):
        """In one write. A kill during it may leave its beginning: each note has lines of its own."""
        os.write(self.log, ("\n" + json.dumps([kind, *ids]) + "\n").encode())

    async def live(self):
        await self.store.open()
        self.note("open", os.getpid())
        await asyncio.gather(*(self.work() for _ in range(3)))

    async def work(self):
        deeds = [self.enqueue, self.claim, self.record, self.finish, self.fail, self.publish]
        weights = [3, 4, 5, 5, 1, 1]
        while True:
            (deed,) = self.random.choices(deeds, weights)
            await deed()

    async def enqueue(self):
        rollouts = [
            Rollout(id=new_id("ro"), task=Task(id="t", input="x"), run_id="run", limits=LIMITS)
            for _ in range(self.random.randint(1, 5))
        ]
        ids = [one.id for one in rollouts]
        self.note("asked", *ids)
        await self.store.enqueue(rollouts)
        if self.random.random() < 0.2:
            await self.store.enqueue(rollouts)
        self.note("queued", *ids)

    async def claim(self):
        claims = await self.store.claim("w", limit=self.random.randint(1, 4), timeout_s=0)
        if claims:
            self.note("claimed", *(claim.attempt.id for claim in claims))
        self.claims += claims

    def spans(self, claim):
        return [
            Span(
                id=new_id("sp"),
                rollout_id=claim.rollout.id,
                attempt_id=claim.attempt.id,
                kind=SpanKind.MESSAGE,
                name="note",
                sequence=n,
                attributes={"text": "x" * self.random.choice([10, 10, 200, 4_000])},
            )
            for n in range(self.random.randint(1, 8))
        ]

    async def record(self):
        if self.claims:
            claim = self.random.choice(self.claims)
            spans = self.spans(claim)
            if (await self.store.add_spans(spans)).accepted == len(spans):
                self.note("recorded", claim.rollout.id, *(span.id for span in spans))

    async def finish(self):
        if not self.claims:
            return
        claim = self.claims.pop(self.random.randrange(len(self.claims)))
        spans = self.spans(claim)
        ids = [span.id for span in spans]
        for _ in range(self.random.choice([1, 1, 2])):
            await self.store.finish(
                claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=spans, output=ids
            )
        self.note("finished", claim.rollout.id, claim.attempt.id, *ids)

    async def fail(self):
        if self.claims:
            claim = self.claims.pop()
            failure = Failure(kind=FailureKind.ENGINE, message="no answer")
            await self.store.finish(claim.attempt.id, status=AttemptStatus.FAILED, failure=failure)
            self.note("failed", claim.rollout.id, claim.attempt.id)

    async def publish(self):
        text = new_id("prompt")
        made = Resources(run_id="run", items={"prompt": PromptTemplate(template=text)})
        published = await self.store.publish(made)
        self.note("published", published.version, text)


def kill_in(steps):
    """End this process, without a chance to clean up, when SQLite has worked for so long."""
    connect = sqlite_module.connect
    left = steps

    def stepped():
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_and_count(settings, *, read_only=False):
        connection = connect(settings, read_only=read_only)
        if not read_only:
            connection.set_progress_handler(stepped, 100)
        return connection

    sqlite_module.connect = connect_and_count


def main():
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer(os.waitstatus_to_exitcode(status))
        elif pid := os.fork():
            answer(pid)
        else:
            live(order)


def answer(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def live(order):
    try:
        if order["steps"] is not None:
            kill_in(order["steps"])
        asyncio.run(Writer(order).live())
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it was
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
