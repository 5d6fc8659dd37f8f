"""A bench for agents: the real store, gateway, recorder and adapter with a fake model server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from agl_endpoints import HttpBackend

from agl_core.adapters import TrajectoryAdapter
from agl_core.clocks import new_id
from agl_core.gateway import GatewayServer
from agl_core.interfaces import (
    AdaptedAttempt,
    AttemptRecord,
    Dialect,
    Integration,
    LearnsPrompts,
    RouteFactory,
)
from agl_core.store import MemoryStore
from agl_core.tracing import AttemptContext, Recorder, attach, emit_reward, enter, origins_of
from agl_core.types import (
    LLM,
    AttemptStatus,
    Claim,
    Failure,
    FailureKind,
    Limits,
    ModelCall,
    Policy,
    PromptTemplate,
    Resources,
    Rollout,
    Span,
    Task,
)
from agl_testing._installed import installed_dialects, installed_rewriters, installed_routes
from agl_testing.fake_openai import Answered, FakeOpenAI, FakeOptions
from agl_testing.scenario import Job, reply

__all__ = ["Action", "Bench", "Played"]

_POLICY: Final = Policy(
    name="policy",
    agents=("*",),
    trainable=True,
    train_constrained=True,
    model="fake-model",
    version=1,
)
Action = Callable[[Job], Any]
"""A program to run in a rollout: sync in a separate thread, or async in a separate task."""
_ROUND_S: Final = 60.0
_PATIENT: Final = Limits(timeout_s=600.0, lease_s=600.0)
"""Limits without short deadlines: the bench sends no heartbeats, and the machine may be slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One ended attempt: the program's result and the records."""

    job: Job
    record: AttemptRecord
    output: Any
    error: BaseException | None

    @property
    def spans(self) -> list[Span]:
        """Spans that tracing recorded, in order; the gateway's are left out."""
        spans = [span for span in self.record.spans if span.call is None]
        return sorted(spans, key=lambda span: span.order)

    @property
    def calls(self) -> list[ModelCall]:
        """Calls that the gateway recorded, in the order in which they began."""
        calls = [span.call for span in self.record.spans if span.call is not None]
        return sorted(calls, key=lambda call: call.started_ns)

    def with_spans(self, spans: Sequence[Span]) -> Played:
        """Return the same attempt with other spans, for tests that break a record on purpose."""
        record = AttemptRecord(
            rollout=self.record.rollout, attempt=self.record.attempt, spans=[*spans]
        )
        return Played(job=self.job, record=record, output=None, error=None)

    def adapt(self, *agents: str) -> AdaptedAttempt:
        """Join the records and credit them for the training of `agents`.

        Raises:
            CaptureError: the two recorders disagree.
        """
        return TrajectoryAdapter(agents, policies=[_POLICY]).adapt(self.record)


class Bench:
    """Runs programs as rollouts against `fake`, through a recording gateway."""

    def __init__(self, fake: FakeOpenAI, store: MemoryStore, gateway: GatewayServer) -> None:
        """Store the parts; use `open` to create a bench."""
        self.fake = fake
        self.gateway = gateway
        self._store = store
        self._rounds: _Rounds | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        options: FakeOptions | None = None,
        *,
        integrations: Sequence[Integration] | None = None,
        routes: Mapping[str, RouteFactory] | None = None,
        dialects: Mapping[str, Dialect] | None = None,
    ) -> AsyncGenerator[Bench, None]:
        """Start all parts on loopback ports that the system chooses.

        Args:
            options: How the fake model server behaves.
            integrations: Attached while the bench is open. An empty list only marks requests; None
                attaches nothing.
            routes: Further routes of the gateway, by method and path; those of installed plugins
                when None.
            dialects: Dialects besides chat completions; those of installed plugins when None.
        """
        store = MemoryStore()
        await store.open()
        async with FakeOpenAI(reply, options) as fake:
            backend = HttpBackend(fake.base_url, model=_POLICY.model)
            gateway = GatewayServer(
                store,
                routes=installed_routes() if routes is None else routes,
                dialects=installed_dialects() if dialects is None else dialects,
                rewriters=installed_rewriters(),
            )
            await gateway.route(_POLICY, backend)
            await gateway.start()
            try:
                await gateway.probe(_POLICY.name)
                fake.log.clear()
                with _attached(integrations):
                    yield cls(fake, store, gateway)
            finally:
                await gateway.stop()
                await backend.close()
                await store.close()

    async def play(
        self,
        action: Action,
        *,
        rollouts: int = 1,
        recorder: Callable[[Claim], Recorder] | None = None,
        prompts: Mapping[str, PromptTemplate] | None = None,
    ) -> list[Played]:
        """Run `action` in `rollouts` rollouts in parallel; each gets the reward 1.0 if it returns.

        Args:
            action: The program; an exception it raises is stored in `Played.error`.
            rollouts: Number of rollouts; each has a different `Job.key`.
            recorder: Creates each attempt's recorder.
            prompts: Prompts of the rollouts' resources.
        """
        version = 0
        if prompts is not None:
            version = (await self._store.publish(Resources(items={**prompts}))).version
        tasks = [
            Rollout(
                id=new_id("rollout"),
                task=Task(id=str(number)),
                run_id="bench",
                limits=_PATIENT,
                resources_version=version,
            )
            for number in range(rollouts)
        ]
        await self._store.enqueue(tasks)
        claims = await self._store.claim("bench", limit=rollouts)
        pool = ThreadPoolExecutor(max_workers=rollouts)
        try:
            return await asyncio.gather(
                *(self._attempt(action, claim, pool, recorder or _recorder) for claim in claims)
            )
        finally:
            # Waiting would block this loop, and the threads may wait for its servers.
            pool.shutdown(wait=False)

    async def one(
        self, action: Action, *, prompts: Mapping[str, PromptTemplate] | None = None
    ) -> Played:
        """Run `action` in one rollout."""
        return (await self.play(action, prompts=prompts))[0]

    def learn(self, played: Sequence[Played], *, agents: Sequence[str]) -> PromptTemplate:
        """Return the prompt that agents sent in attempts, as the installed plugin learns it.

        Raises:
            ConfigError: they sent none, or different ones.
        """
        made = (make(self._store) for make in installed_rewriters())
        learner = next(each for each in made if isinstance(each, LearnsPrompts))
        return learner.learn([each.record for each in played], name="prompt", agents=agents)

    def interleave(self, count: int) -> None:
        """Hold the model's answers until `count` requests wait, then release them in random order.

        With `count` rollouts that make equally many calls, every round of answers mixes all of
        them. An ended rollout is not waited for, so that an error or an early end does not block.
        """
        self._rounds = _Rounds(count, Random(0))  # noqa: S311
        self.fake.before_send = self._rounds.before_send

    async def _attempt(
        self,
        action: Action,
        claim: Claim,
        pool: ThreadPoolExecutor,
        make_recorder: Callable[[Claim], Recorder],
    ) -> Played:
        rollout, attempt = claim.rollout, claim.attempt
        await self.gateway.open(rollout, attempt)
        recorder = make_recorder(claim)
        key = self.gateway.attempt_key(rollout.id, attempt.id)
        llm = LLM(model=_POLICY.name, base_url=f"{self.gateway.url}/v1", api_key=key)
        job = Job(llm.base_url, llm.api_key, key=rollout.task.id)
        context = AttemptContext(
            rollout=rollout,
            attempt=attempt,
            llm=llm,
            resources=Resources(),
            recorder=recorder,
            origins=origins_of(self.gateway.url),
            deadline=time.monotonic() + rollout.limits.timeout_s,
        )
        output, error = await _outcome(action, job, context, pool)
        if self._rounds is not None:
            self._rounds.leave()
        await self.gateway.seal(attempt.id)
        ended = await self._store.finish(
            attempt.id,
            status=AttemptStatus.SUCCEEDED if error is None else AttemptStatus.FAILED,
            spans=recorder.drain(),
            failure=None if error is None else Failure(kind=FailureKind.AGENT, message=repr(error)),
        )
        spans = await self._store.spans([rollout.id])
        record = AttemptRecord(rollout=rollout, attempt=ended, spans=spans)
        return Played(job=job, record=record, output=output, error=error)


@contextmanager
def _attached(integrations: Sequence[Integration] | None) -> Generator[None, None, None]:
    if integrations is None:
        yield
        return
    attachment = attach(integrations=integrations)
    try:
        yield
    finally:
        attachment.detach()


def _recorder(claim: Claim) -> Recorder:
    return Recorder(claim.rollout.id, claim.attempt.id)


async def _outcome(
    action: Action, job: Job, context: AttemptContext, pool: ThreadPoolExecutor
) -> tuple[Any, BaseException | None]:
    async def in_task() -> Any:
        with enter(context):
            if inspect.iscoroutinefunction(action):
                output = await action(job)
            else:
                here = copy_context()
                loop = asyncio.get_running_loop()
                output = await loop.run_in_executor(pool, lambda: here.run(action, job))
            emit_reward(1.0)
            return output

    try:
        return await asyncio.create_task(in_task()), None
    except Exception as error:  # noqa: BLE001  kept as the attempt's outcome
        return None, error


class _Rounds:
    """Releases waiting answers one whole round at a time, shuffled."""

    def __init__(self, count: int, random: Random) -> None:
        self._count = count
        self._random = random
        self._waiting: list[asyncio.Event] = []

    async def before_send(self, answer: Answered, position: int) -> None:
        """See `agl_testing.fake_openai.BeforeSend`."""
        del answer
        if position:
            return
        mine = asyncio.Event()
        self._waiting.append(mine)
        self._release()
        await asyncio.wait_for(mine.wait(), _ROUND_S)

    def leave(self) -> None:
        """Wait for one request less in each round."""
        self._count -= 1
        self._release()

    def _release(self) -> None:
        if len(self._waiting) < self._count:
            return
        waiting, self._waiting = self._waiting, []
        self._random.shuffle(waiting)
        for event in waiting:
            event.set()
