"""The runner: claims rollouts, runs many attempts concurrently, finishes them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from agl_core.errors import StaleAttemptError
from agl_core.interfaces import Gateway, Store
from agl_core.plugins.requirements import own_version
from agl_core.runner._agent_loop import Stall, cleared_after
from agl_core.runner._attempt import Agent, AttemptRun, Ending, Grade, opened, reconsidered, sealed
from agl_core.runner._cleanup import Cleanup, LossCounter, span_of
from agl_core.runner._heartbeat import Flight, Heartbeats
from agl_core.runner._limits import AttemptDeadline, LoopWatch, StartThrottle
from agl_core.tracing import (
    AttemptContext,
    Recorder,
    Strays,
    attach,
    bounded,
    counting_strays,
    origins_of,
)
from agl_core.types import (
    LLM,
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    FailureKind,
    Losses,
    Resources,
    Rollout,
    Span,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """The settings and callbacks of a runner."""

    concurrency: int = 32
    """Most attempts in flight."""
    heartbeat_s: float | None = None
    """Seconds between heartbeats; None: a third of the shortest lease in flight."""
    grace_s: float = 1.0
    """Longest time for cancelled user code to end before it is abandoned."""
    outside: bool = False
    """Whether the trainer is another process. Losses are then stored with the attempts that the
    runner ends, and attempts that it stops become LOST, for other runners, not CANCELLED."""
    max_abandoned: int | None = None
    """With more threads and tasks that could not be stopped, the runner claims no more and ends."""
    on_started: Callable[[Rollout, Attempt], None] | None = None
    """Called before the agent; an exception stops the runner."""
    on_finished: Callable[[Rollout, Attempt, Sequence[Span]], None] | None = None
    """Called with the stored attempt and its tracing spans; an exception stops the runner."""


_log = logging.getLogger(__name__)

MAX_OUTPUT_CHARS: Final = 1_048_576


class Runner:
    """Keeps up to `concurrency` attempts in flight until it is stopped.

    All async agents share one event loop in a separate thread; each plain agent runs in its own
    daemon thread. An error of an agent or a reward ends only its attempt. `losses` counts
    ``late_attempt`` (finished after the store had ended it), ``revoked_attempt`` (cancelled because
    the store had ended it), ``abandoned_thread`` and ``abandoned_task`` (could not be stopped),
    ``late_<kind>`` spans, ``dropped_span``, ``truncated_value`` and ``failed_heartbeat``.
    """

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        agent: Agent,
        rewards: Grade | None,
        options: RunnerOptions | None = None,
    ) -> None:
        """Set the components.

        Args:
            store: Source of rollouts and target of records.
            gateway: Target of the agents' calls.
            agent: The agent program.
            rewards: Scores each attempt; None for agents that emit their own rewards.
            options: Settings and callbacks.
        """
        self._store = store
        self._gateway = gateway
        self._agent = agent
        self._rewards = rewards
        self._options = options or RunnerOptions()
        self._worker = f"{socket.gethostname()}-{os.getpid()}/{own_version()}"
        self._flights: dict[str, Flight] = {}
        self._loss_counter = LossCounter()
        self._heartbeats = Heartbeats(
            store,
            self._flights,
            interval_s=self._options.heartbeat_s,
            count=self._loss_counter.count,
        )
        self._resources: Resources | None = None
        self._cleanup = Cleanup(store, self._loss_counter)
        self._watch = LoopWatch()
        self._throttle = StartThrottle()

    @property
    def stalls(self) -> list[Stall]:
        """The blockages of the event loop of async agents and rewards."""
        return self._watch.stalls

    @property
    def losses(self) -> Losses:
        """Losses by cause since the runner was created."""
        return self._loss_counter.losses

    @property
    def abandoned(self) -> int:
        """The number of threads and tasks that could not be stopped and still run.

        They keep memory and locks: a process with many of them should be replaced.
        """
        return self._cleanup.abandoned

    @property
    def worn(self) -> bool:
        """Whether `abandoned` exceeds `max_abandoned`, so that the runner claims no more."""
        most = self._options.max_abandoned
        return most is not None and self.abandoned > most

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set or the runner is `worn`, then wait for attempts in flight.

        During this time agl is attached to the process, ``OPENAI_BASE_URL`` is the gateway's
        address, and ``OPENAI_API_KEY`` is a key of the run that opens no attempt; requests sent
        inside an attempt get the attempt's key. On cancellation the attempts in flight are stopped
        and stored as CANCELLED (or LOST, see `RunnerOptions`); a second cancellation stops
        immediately.

        Raises:
            StoreError: the store failed; an attempt that lost its fence is counted instead.
        """
        attachment = attach()
        try:
            strays = Strays(origins_of(self._gateway.url), self._count_stray)
            environment = gateway_environment(self._gateway.url, self._gateway.client_key)
            with environment, counting_strays(strays):
                async with cleared_after():
                    await self._serve(stop)
        finally:
            attachment.detach()

    def _count_stray(self, cause: str) -> None:
        if self._flights:
            self._loss_counter.count(cause)

    async def _serve(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        beating = asyncio.create_task(self._heartbeats.run())
        watching = asyncio.create_task(self._watch.run())
        try:
            await self._claim_until(stopping, beating)
            while self._flights:
                await self._advance({beating})
        finally:
            for task in (beating, watching, stopping):
                task.cancel()
            await self._release()

    async def _claim_until(self, stopping: asyncio.Task[Any], beating: asyncio.Task[None]) -> None:
        claiming: asyncio.Task[list[Claim]] | None = None
        pacing: asyncio.Task[Any] | None = None
        try:
            while not stopping.done() and not self.worn:
                allowed = self._throttle.allowed(self._options.concurrency - len(self._flights))
                if claiming is None and allowed > 0:
                    claiming = asyncio.create_task(self._store.claim(self._worker, limit=allowed))
                if pacing is None:
                    pacing = asyncio.create_task(self._throttle.changed.wait())
                others: set[asyncio.Task[Any]] = {stopping, beating, pacing}
                await self._advance(others if claiming is None else {*others, claiming})
                if claiming is not None and claiming.done():
                    self._launch(claiming.result())
                    claiming = None
                if pacing.done():
                    pacing = None
        finally:
            if pacing is not None:
                pacing.cancel()
            if claiming is not None:
                claiming.cancel()
                await asyncio.wait({claiming})
                if not claiming.cancelled() and claiming.exception() is None:
                    self._launch(claiming.result())  # claimed before the cancellation: must end

    async def _advance(self, others: set[asyncio.Task[Any]]) -> None:
        """Wait until an attempt or one of `others` ends; raise the exception that ended it."""
        flying = {flight.task for flight in self._flights.values()}
        done, _ = await asyncio.wait({*flying, *others}, return_when=asyncio.FIRST_COMPLETED)
        for attempt_id, flight in list(self._flights.items()):
            if flight.task.done():
                del self._flights[attempt_id]
                self._throttle.ended(attempt_id)
        for task in done:
            task.result()

    def _launch(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            late = partial(self._cleanup.late, claim.rollout, asyncio.get_running_loop())
            recorder = Recorder(claim.rollout.id, claim.attempt.id, on_late=late)
            flight = Flight(claim, recorder, self._fly)
            self._flights[claim.attempt.id] = flight
            self._throttle.begin(claim.attempt.id)
        self._heartbeats.changed()

    async def _fly(self, flight: Flight) -> None:
        try:
            ending = await self._attempt(flight)
        except StaleAttemptError:
            await self._give_up(flight, "late_attempt")
        except asyncio.CancelledError:
            if flight.revoked:
                await self._give_up(flight, "revoked_attempt")
                return
            await self._end(flight, self._given_up("The runner was stopped"))
            raise
        except BaseException as error:
            await self._end(flight, self._given_up(f"The runner failed: {type(error).__name__}"))
            raise
        else:
            await self._end(flight, ending)

    async def _attempt(self, flight: Flight) -> Ending:
        rollout, attempt = flight.claim.rollout, flight.claim.attempt
        unopened = await opened(self._gateway, flight.claim)
        if unopened is not None:
            return unopened
        if self._options.on_started is not None:
            self._options.on_started(rollout, attempt)
        resources = self._own(await self._resources_of(rollout), attempt)
        context = AttemptContext(
            rollout=rollout,
            attempt=attempt,
            llm=self._llm(resources, attempt),
            resources=resources,
            recorder=flight.recorder,
            origins=origins_of(self._gateway.url),
            deadline=attempt.monotonic_deadline(rollout.limits),
        )
        limits = AttemptDeadline(
            context,
            grace_s=self._options.grace_s,
            abandoned=self._cleanup.abandon,
            begun=partial(self._throttle.begun, attempt.id),
        )
        recorded = partial(self._recorded, attempt)
        ending = await AttemptRun(limits, self._agent, self._rewards, recorded).run()
        if ending.failure is not None:
            self._cleanup.report(attempt, ending.failure)
        return ending

    async def _recorded(self, attempt: Attempt) -> list[Span]:
        """Return the gateway's records of an attempt whose agent has returned, for rewards."""
        await self._gateway.flush(attempt.id)
        return await self._store.spans([attempt.rollout_id], attempt_id=attempt.id)

    async def _resources_of(self, rollout: Rollout) -> Resources:
        version = rollout.resources_version
        known = self._resources
        if known is None or not version or known.version != version:
            known = await self._store.resources(version or None) or Resources()
            self._resources = known
        return known

    def _own(self, resources: Resources, attempt: Attempt) -> Resources:
        """Return the resources with the attempt's key and the gateway's address in this process."""
        items = {
            name: self._reached(item, attempt) if isinstance(item, LLM) else item
            for name, item in resources.items.items()
        }
        return replace(resources, items=items)

    def _llm(self, resources: Resources, attempt: Attempt) -> LLM:
        given = next((item for item in resources.items.values() if isinstance(item, LLM)), None)
        return given or self._reached(LLM(model=""), attempt)

    def _reached(self, llm: LLM, attempt: Attempt) -> LLM:
        key = self._gateway.attempt_key(attempt.rollout_id, attempt.id)
        return replace(llm, base_url=f"{self._gateway.url}/v1", api_key=key)

    async def _end(self, flight: Flight, ending: Ending) -> None:
        flight.ending = True
        attempt_id = flight.claim.attempt.id
        ending = await sealed(self._gateway, attempt_id, ending)
        spans = flight.recorder.drain()
        ending = await reconsidered(self._store, flight.claim.attempt, ending, spans)
        self._loss_counter.count("dropped_span", flight.recorder.dropped)
        output, cut = bounded(ending.output, MAX_OUTPUT_CHARS)
        self._loss_counter.count("truncated_value", flight.recorder.truncated + cut)
        carried = self._loss_counter.take() if self._options.outside else Losses()
        for lost in (flight.recorder.losses, carried):
            if lost.counts:
                after = spans[-1].sequence if spans else 0
                spans.append(span_of(lost, flight.claim.attempt, after=after))
        try:
            attempt = await self._store.finish(
                attempt_id,
                status=ending.status,
                spans=spans,
                failure=ending.failure,
                output=output,
            )
        except StaleAttemptError:
            self._loss_counter.put_back(carried)
            self._loss_counter.count("late_attempt")
            self._count(flight.recorder.losses)
            return
        if self._options.on_finished is not None:
            self._options.on_finished(flight.claim.rollout, attempt, spans)

    def _count(self, lost: Losses) -> None:
        """Count the losses of an attempt that is not stored, as no span contains them."""
        for cause, n in lost.counts.items():
            self._loss_counter.count(cause, n)

    async def _give_up(self, flight: Flight, cause: str) -> None:
        """Drop an attempt that the store has ended: its records can no longer be stored."""
        flight.ending = True
        self._loss_counter.count(cause)
        await sealed(self._gateway, flight.claim.attempt.id, self._given_up(cause))
        flight.recorder.drain()
        self._count(flight.recorder.losses)

    async def _release(self) -> None:
        """Stop attempts in flight and store them as cancelled; wait for those being stored."""
        flights = list(self._flights.values())
        self._flights.clear()
        tasks = [flight.task for flight in flights]
        for flight in flights:
            flight.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                _log.error("An attempt could not be ended", exc_info=ended)
        for flight in flights:
            if not flight.ending:  # cancelled before its first step
                await self._end(flight, self._given_up("The runner was stopped"))

    def _given_up(self, reason: str) -> Ending:
        """Return the ending of an attempt that the runner stopped; see `RunnerOptions.outside`."""
        status, kind = AttemptStatus.CANCELLED, FailureKind.CANCELLED
        if self._options.outside:
            status, kind = AttemptStatus.LOST, FailureKind.LOST
        return Ending(status=status, failure=Failure(kind=kind, message=reason))


_PROXIES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXY: Final = ("no_proxy", "NO_PROXY")
_OLD_BASE_URL: Final = "OPENAI_API_BASE"
"""It has precedence over ``OPENAI_BASE_URL`` in some clients, so it must have the same address."""


@contextmanager
def gateway_environment(url: str, api_key: str) -> Generator[None, None, None]:
    """Set ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` to the gateway, and restore them at exit.

    A variable that the user's program changes or removes inside is not restored.

    If a proxy is set, the gateway's host is added to ``NO_PROXY``: a proxy on another machine
    cannot reach a gateway on this machine.

    Args:
        url: ``http://host:port`` of the gateway.
        api_key: Key for the gateway.
    """
    changes = _changes(url, api_key)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if os.environ.get(name) != changes[name]:
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _changes(url: str, api_key: str) -> dict[str, str]:
    changes = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": api_key}
    if _OLD_BASE_URL in os.environ:
        changes[_OLD_BASE_URL] = f"{url}/v1"
    if any(os.environ.get(name) for name in _PROXIES):
        host = urlsplit(url).hostname or ""
        # If the lower-case name is set, clients ignore the other one, so both get the user's value.
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        changes.update(dict.fromkeys(_NO_PROXY, f"{given},{host}" if given else host))
    return changes
