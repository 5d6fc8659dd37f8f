"""The processes of a run, its gateway and its queue, as its records show them."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
from agl_endpoints import is_loopback
from agl_reading import Count, RowFilter, RowQuery, is_alive

from agl_core.clocks import wall
from agl_core.types import LLM, Attempt, Rollout, RolloutQuery, RolloutStatus
from agl_dashboard._history import History
from agl_dashboard._sources import ShownRun

_LOOKED_AT: Final = 100
"""Newest rollouts whose workers are shown."""
_ANSWER_S: Final = 0.3
_LARGEST: Final = 1000
"""Bytes of a gateway's answer that are read."""

Life = Literal["alive", "ended", "unknown"]
"""``unknown``: of another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """A process that takes or took part in the run."""

    role: str
    host: str
    pid: str
    life: Life
    seen_at: float
    """Unix seconds of the last sign of it in the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Where the gateway is."""

    url: str
    answers: bool | None
    """Whether it answers; None if it is on another machine, or the run has ended."""
    in_flight: int | None = None
    """Number of model requests under way, as it states."""


class _Health(msgspec.Struct):
    """The answer of a gateway's ``/health``."""

    status: str
    in_flight: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """What one runner has claimed."""

    worker: str
    attempts: int
    longest_s: float
    lease_age_s: float
    """Seconds since its last heartbeat."""
    overdue: int
    """Attempts whose lease has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """What waits, and what is claimed."""

    waiting: Count
    oldest_s: float | None = None
    """Age of the rollout that waits longest; None if none waits."""
    workers: Sequence[WorkerLoad] = ()


async def processes(
    run: ShownRun, history: History, flights: Sequence[Rollout]
) -> list[ProcessRow]:
    """Return the trainer, and the runners of the newest rollouts and of those under way."""
    found: list[ProcessRow] = []
    if history.pid:
        found.append(
            ProcessRow(
                role="trainer",
                host=history.host,
                pid=str(history.pid),
                life=_life(history.host, str(history.pid)),
                seen_at=history.updated_at,
            )
        )
    seen: dict[str, float] = {}
    for rollout in [*await _newest(run), *flights]:
        for attempt in rollout.attempts:
            at = attempt.ended_at or _heartbeat(rollout, attempt)
            seen[attempt.worker] = max(seen.get(attempt.worker, 0.0), at)
    for worker in sorted(seen, key=lambda each: -seen[each]):
        host, pid = _host_and_pid(worker)
        found.append(
            ProcessRow(
                role="runner", host=host, pid=pid, life=_life(host, pid), seen_at=seen[worker]
            )
        )
    return found


async def _newest(run: ShownRun) -> Sequence[Rollout]:
    if not run.readable:
        return ()
    rows = await run.reading.rows(RowQuery(limit=_LOOKED_AT))
    ids = tuple(row.id for row in rows)
    return await run.store.rollouts(RolloutQuery(ids=ids, limit=len(ids))) if ids else ()


def _heartbeat(rollout: Rollout, attempt: Attempt) -> float:
    """Return when the lease was renewed last, which a heartbeat does."""
    return max(attempt.lease_until - rollout.limits.lease_s, attempt.started_at)


def _host_and_pid(worker: str) -> tuple[str, str]:
    """Return both from the name of a runner, ``host-pid/version``; other names are the host."""
    name = worker.partition("/")[0]
    host, _, pid = name.rpartition("-")
    return (host, pid) if host and pid.isdecimal() else (worker, "")


def _life(host: str, pid: str) -> Life:
    if host != socket.gethostname() or not pid.isdecimal():
        return "unknown"
    return "alive" if is_alive(int(pid)) else "ended"


async def queue_of(run: ShownRun, flights: Sequence[Rollout]) -> QueueState:
    """Return the queue: how much waits and how long, and what each runner has claimed."""
    wanted, now = RowFilter(statuses=(RolloutStatus.QUEUED,)), wall()
    oldest = await run.reading.rows(RowQuery(wanted=wanted, descending=False, limit=1))
    claimed: defaultdict[str, list[tuple[Rollout, Attempt]]] = defaultdict(list)
    for rollout in flights:
        if rollout.attempt is not None:
            claimed[rollout.attempt.worker].append((rollout, rollout.attempt))
    return QueueState(
        waiting=await run.reading.count(wanted),
        oldest_s=max(now - oldest[0].created_at, 0.0) if oldest else None,
        workers=[
            WorkerLoad(
                worker=worker,
                attempts=len(own),
                longest_s=now - min(attempt.started_at for _, attempt in own),
                lease_age_s=max(now - max(_heartbeat(*each) for each in own), 0.0),
                overdue=sum(attempt.lease_until < now for _, attempt in own),
            )
            for worker, own in sorted(claimed.items())
        ],
    )


async def gateway_of(run: ShownRun, history: History) -> GatewayState | None:
    """Return the gateway that the newest resources name; None if they name none."""
    if not run.readable:
        return None
    resources = await run.store.resources()
    items = resources.items.values() if resources is not None else ()
    address = next((each.base_url for each in items if isinstance(each, LLM)), "")
    with suppress(ValueError):  # of a port that is no number
        place = urlsplit(address)
        if place.hostname and place.port:
            url = f"{place.scheme}://{place.netloc.rpartition('@')[2]}"
            ended = history.status not in ("running", "unknown")
            here = not ended and is_loopback(place.hostname)
            if not here:
                return GatewayState(url=url, answers=None)
            health = await _health(url)
            return GatewayState(
                url=url, answers=health is not None, in_flight=health.in_flight if health else None
            )
    return None


async def _health(url: str) -> _Health | None:
    """Return what a gateway of this machine says of itself; None if it does not answer."""
    import aiohttp  # noqa: PLC0415  only for a running gateway

    limit = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(f"{url}/health", allow_redirects=False) as answer,
        ):
            return msgspec.json.decode(await answer.content.read(_LARGEST), type=_Health)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
        return None
