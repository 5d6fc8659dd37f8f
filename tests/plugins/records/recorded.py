"""A run's directory with attempts of every kind."""

from __future__ import annotations

import msgspec
from agl_testing.attempts import ScriptedAttempt

from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, Failure, FailureKind, Rollout, Task

CONFIG = RunConfig.model_validate({"agents": ["writer"], "model": "m", "name": "run"})
FAILURE = Failure(kind=FailureKind.AGENT, message="broke")


def spoken(reward=None, *, text="hé\ud800llo", agent="writer", **fields):
    """An attempt in which the writer answers once, after an untrained planner."""
    script = ScriptedAttempt()
    script.call("planner", [9], [8], trainable=False, policy="frozen")
    script.call(agent, [1, 2], [3], messages=[{"role": "user", "content": "?"}], **fields)
    (span,) = [s for s in script.spans if s.call is not None and s.call.agent == agent]
    choice = msgspec.structs.replace(span.call.choices[0], text=text)
    answered = msgspec.structs.replace(span.call, choices=[choice])
    script.spans = [
        msgspec.structs.replace(s, call=answered) if s is span else s for s in script.spans
    ]
    if reward is not None:
        script.reward(reward)
    return script


class Run:
    """Writes attempts into a run's store as a run does."""

    def __init__(self, directory):
        self.directory = directory
        self.count = 0

    async def open(self, config=CONFIG):
        self.directory.mkdir(parents=True)
        save_config(config, self.directory)
        self.store = SqliteStore(self.directory / "store.db")
        await self.store.open()

    async def add(self, script, *, failure=None, mode="train", finish=True, retry=False):
        """Store the attempt; returns its rollout's id."""
        self.count += 1
        rollout = Rollout(
            id=f"ro_{self.count}",
            task=Task(id=f"t{self.count}"),
            run_id="run",
            group_id="g",
            mode=mode,
        )
        if not retry:
            await self.store.enqueue([rollout])
        (claim,) = await self.store.claim("worker")
        spans = [
            msgspec.structs.replace(
                span,
                rollout_id=claim.rollout.id,
                attempt_id=claim.attempt.id,
                call=span.call
                and msgspec.structs.replace(
                    span.call, rollout_id=claim.rollout.id, attempt_id=claim.attempt.id
                ),
            )
            for span in script.spans
        ]
        await self.store.add_spans([span for span in spans if span.call is not None])
        if finish:
            await self.store.finish(
                claim.attempt.id,
                status=AttemptStatus.FAILED if failure else AttemptStatus.SUCCEEDED,
                failure=failure,
                spans=[span for span in spans if span.call is None],
            )
        return claim.rollout.id
