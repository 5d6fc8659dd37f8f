"""The page of what runs: store, index, work in flight, events, configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from agl_reading import LogEvent, RowFilter

from agl_core.clocks import wall
from agl_core.config import without_secrets
from agl_core.store import without_password
from agl_core.text import json_bytes
from agl_core.types import Rollout, RolloutQuery, RolloutStatus
from agl_dashboard._panel import Page, View
from agl_dashboard._sources import ShownRun, configuration
from agl_dashboard._text import cut

_IN_FLIGHT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInFlight:
    """An attempt under way."""

    rollout: Rollout
    seconds: float
    lease_s: float
    """Seconds until its lease ends; negative if no heartbeat came in time."""


class SystemPanel:
    """Store, index, work in flight, the newest events, the configuration."""

    title = "System"
    order = 90
    scope: Literal["all", "run"] = "run"

    async def page(self, view: View) -> Page:
        run = view.run
        config = run.config
        if config is None and run.directory is not None:
            config = await asyncio.to_thread(configuration, run.directory)
        plain = without_secrets(config) if config is not None else {}
        files = await asyncio.to_thread(_checkpoints, run)
        counts: dict[str, Any] = {}
        flights: Sequence[AttemptInFlight] = ()
        if run.readable:
            for status in RolloutStatus:
                found = await run.reading.count(RowFilter(statuses=(status,)))
                counts[status.value] = found
            flights = await _flights(run)
        history = run.files.history if run.files is not None else None
        body = view.template(
            "system.html",
            view=view,
            run=run,
            where=_where(run),
            progress=run.reading.progress if run.readable else None,
            counts=counts,
            flights=flights,
            history=history,
            events=[_event(each) for each in reversed(history.events)] if history else [],
            config=cut(json_bytes(plain, indent=2).decode()) if plain else None,
            checkpoints=files,
        )
        return Page(title="System", body=body)


def make_panel() -> SystemPanel:
    return SystemPanel()


def _where(run: ShownRun) -> str:
    address = run.address
    if address is None:
        return run.target
    return str(address.file) if address.file is not None else without_password(address.url or "")


async def _flights(run: ShownRun) -> list[AttemptInFlight]:
    query = RolloutQuery(statuses=(RolloutStatus.RUNNING,), limit=_IN_FLIGHT)
    now = wall()
    found = [
        AttemptInFlight(
            rollout=each,
            seconds=now - each.attempt.started_at,
            lease_s=each.attempt.lease_until - now,
        )
        for each in await run.store.rollouts(query)
        if each.attempt is not None
    ]
    return sorted(found, key=lambda each: -each.seconds)


def _event(event: LogEvent) -> tuple[float, str, str]:
    text = ", ".join(f"{name} {each}" for name, each in event.fields.items())
    return event.at, event.kind, text


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
