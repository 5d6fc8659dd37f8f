"""The page of what runs: processes, gateway, queue, log, store, services, configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from agl_reading import Latency, LogEvent, RowFilter, ServiceState, latencies, read_services

from agl_core.config import without_secrets
from agl_core.store import without_password
from agl_core.text import json_bytes
from agl_core.types import Rollout, RolloutQuery, RolloutStatus
from agl_dashboard._format import count, duration, number
from agl_dashboard._history import History
from agl_dashboard._panel import Page, View
from agl_dashboard._processes import gateway_of, processes, queue_of
from agl_dashboard._sources import ShownRun, configuration
from agl_dashboard._text import cut

_IN_FLIGHT: Final = 500
_RECENT: Final = 20
"""Steps over which times of model calls are shown."""
_LINES: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLoad:
    """The model calls of the last steps."""

    steps: int
    latencies: list[Latency]
    at_once: float | None
    """Mean number of model calls of training at the same time; None if unknown."""


class SystemPanel:
    """Processes, gateway, queue, the newest lines of the log, store, configuration."""

    title = "System"
    order = 90
    scope: Literal["all", "run"] = "run"

    async def page(self, view: View) -> Page:
        run = view.run
        config = run.config
        if config is None and run.directory is not None:
            config = await asyncio.to_thread(configuration, run.directory)
        plain = without_secrets(config) if config is not None else {}
        history = run.files.history if run.files is not None else History()
        flights = await _flights(run)
        kind, find = view.query.get("kind", ""), view.query.get("find", "")[:200]
        body = view.template(
            "system.html",
            view=view,
            run=run,
            where=_where(run),
            progress=run.reading.progress if run.readable else None,
            counts=await _counts(run),
            history=history,
            processes=await processes(run, history, flights),
            gateway=await gateway_of(run, history),
            calls=await _calls(run, history),
            queue=await queue_of(run, flights) if run.readable else None,
            flights=flights,
            services=await asyncio.to_thread(_services, run),
            kinds=sorted({each.kind for each in history.events}),
            kind=kind,
            find=find,
            events=_lines(history.events, kind, find),
            config=cut(json_bytes(plain, indent=2).decode()) if plain else None,
            checkpoints=await asyncio.to_thread(_checkpoints, run),
        )
        return Page(title="System", body=body)


def make_panel() -> SystemPanel:
    return SystemPanel()


def _where(run: ShownRun) -> str:
    address = run.address
    if address is None:
        return run.target
    return str(address.file) if address.file is not None else without_password(address.url or "")


async def _counts(run: ShownRun) -> dict[str, Any]:
    if not run.readable:
        return {}
    return {
        status.value: await run.reading.count(RowFilter(statuses=(status,)))
        for status in RolloutStatus
    }


async def _flights(run: ShownRun) -> Sequence[Rollout]:
    """Return the rollouts whose attempt is under way, the longest first."""
    if not run.readable:
        return ()
    query = RolloutQuery(statuses=(RolloutStatus.RUNNING,), limit=_IN_FLIGHT)
    found = [each for each in await run.store.rollouts(query) if each.attempt is not None]
    return sorted(found, key=lambda each: each.attempt.started_at if each.attempt else 0.0)


async def _calls(run: ShownRun, history: History) -> CallLoad:
    if not run.readable:
        return CallLoad(steps=0, latencies=[], at_once=None)
    first = max(history.step - _RECENT, 0)
    sums = await run.reading.sums(["call_seconds", "latency"], first_step=first)
    steps = [each for number, each in history.steps.items() if number > first]
    wall_s = sum(each.wall_s for each in steps)
    seconds = sum(
        each.total
        for each in sums
        if each.kind == "call_seconds" and each.mode == "train" and each.step < history.step
    )
    return CallLoad(
        steps=len(steps),
        latencies=latencies(sums),
        at_once=seconds / wall_s if wall_s and seconds else None,
    )


def _lines(events: Sequence[LogEvent], kind: str, find: str) -> list[tuple[float, str, str]]:
    """Return the newest lines of the log that pass the filter, newest first."""
    found: list[tuple[float, str, str]] = []
    for each in reversed(events):
        if len(found) == _LINES:
            break
        if kind in ("", each.kind):
            text = _text(each)
            if find.lower() in text.lower():
                found.append((each.at, each.kind, text))
    return found


def _text(event: LogEvent) -> str:
    if event.step is not None:
        step = event.step
        parts = [f"{step.step} of {step.steps}"] if step.steps else [f"{step.step}"]
        parts += [f"reward {number(step.reward)}"] if step.reward is not None else []
        parts += [f"{count(step.tokens)} tokens", duration(step.wall_s)]
        parts += [f"{cause} {n}" for cause, n in {**step.failures, **step.lost}.items()]
        return ", ".join(parts)
    if event.evaluation is not None:
        return str(event.evaluation)
    return ", ".join(f"{name} {each}" for name, each in event.fields.items())


def _services(run: ShownRun) -> list[ServiceState]:
    return read_services(run.directory) if run.directory is not None else []


def _checkpoints(run: ShownRun) -> list[tuple[str, float]]:
    if run.directory is None:
        return []
    found: list[tuple[str, float]] = []
    for path in sorted((run.directory / "checkpoints").glob("step-*")):
        try:
            found.append((path.name, path.stat().st_mtime))
        except OSError:
            continue
    return found[::-1]
