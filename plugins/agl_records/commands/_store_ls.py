"""``agl store ls``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from agl_reading import rewards_of
from agl_stores import rollout_pages

from agl_core.cli.group import CliState, debug_option, json_option, plugin_option
from agl_core.cli.output import console
from agl_core.errors import ConfigError
from agl_core.interfaces import Store
from agl_core.types import Rollout, RolloutQuery, Span
from agl_records.commands._output import write_records
from agl_records.commands._printing import excerpt
from agl_records.commands._selection import (
    Filters,
    filter_options,
    filters_of,
    located,
    reading,
    store_argument,
)

_BATCH = 20
"""Number of rollouts whose spans are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of rollouts, with counts over all pages."""

    rollouts: list[Rollout]
    counts: dict[str, int]
    """Number of rollouts by status that pass all filters except that on the status."""
    matching: int
    """Number of rollouts on all pages."""
    rewards: dict[str, dict[str, float]]
    """Rewards of each rollout's last attempt by channel, unless their spans were deleted."""


@click.command()
@store_argument
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Show the newest rollouts, so many; 0 shows all.",
)
@click.option("--before", metavar="ID", help="Show those before this rollout: the next page.")
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(
    state: CliState,
    *,
    target: str,
    limit: int,
    before: str | None,
    json_file: str | None,
    **options: Any,
) -> None:
    """List rollouts, newest last, and count them by status."""
    filters, address = filters_of(options), located(state, target)

    async def read() -> Listing:
        async with reading(state, address, for_people=True) as store:
            if before is not None and not await store.rollouts(RolloutQuery(ids=(before,))):
                raise ConfigError(f"There is no rollout {before!r} in {target!r}")
            return await listing(store, filters, limit=limit, before=before)

    found = asyncio.run(read())
    if json_file is not None:
        page = {
            "rollouts": found.rollouts,
            "counts": found.counts,
            "matching": found.matching,
            "rewards": found.rewards,
        }
        write_records(page, json_file)
        return
    _show(found, none="no rollouts" if filters == Filters() else "no rollouts match")


async def listing(store: Store, filters: Filters, *, limit: int, before: str | None) -> Listing:
    """Return the newest page before a rollout, and counts over all pages."""
    newest: deque[Rollout] = deque(maxlen=limit or None)
    counts: Counter[str] = Counter()
    matching = 0
    async for page in rollout_pages(store, replace(filters, statuses=()).query):
        for rollout in page:
            counts[rollout.status.value] += 1
            if filters.statuses and rollout.status not in filters.statuses:
                continue
            matching += 1
            if before is None or rollout.id < before:
                newest.append(rollout)
    return Listing(
        rollouts=list(newest),
        counts=dict(counts),
        matching=matching,
        rewards=await _rewards(store, list(newest)),
    )


async def _rewards(store: Store, rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Read rewards, a few rollouts at a time: their spans contain all tokens."""
    found: dict[str, dict[str, float]] = {}
    ended = [rollout for rollout in rollouts if rollout.attempt is not None]
    for start in range(0, len(ended), _BATCH):
        batch = ended[start : start + _BATCH]
        spans: dict[str, list[Span]] = {}
        for span in await store.spans([rollout.id for rollout in batch]):
            spans.setdefault(span.attempt_id, []).append(span)
        for rollout in batch:
            assert rollout.attempt is not None
            if channels := rewards_of(spans.get(rollout.attempt.id, ())):
                found[rollout.id] = channels
    return found


def _show(found: Listing, *, none: str) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in (
        "rollout",
        "task",
        "mode",
        "step",
        "status",
        "reward",
        "attempts",
        "took",
        "failure",
    ):
        table.add_column(name, no_wrap=name == "rollout")
    for rollout in found.rollouts:
        table.add_row(*(Text(cell) for cell in _cells(rollout, found.rewards.get(rollout.id, {}))))
    target = console()
    if found.rollouts:
        target.print(table)
    counted = ", ".join(f"{count} {status}" for status, count in sorted(found.counts.items()))
    target.print(f"{sum(found.counts.values())} rollouts: {counted}" if counted else none)
    if found.rollouts and len(found.rollouts) < found.matching:
        target.print(
            f"{len(found.rollouts)} of {found.matching} shown; before them: "
            f"--before {found.rollouts[0].id}"
        )


def _cells(rollout: Rollout, rewards: Mapping[str, float]) -> Sequence[str]:
    attempt = rollout.attempt
    failure = attempt.failure if attempt else None
    return (
        rollout.id,
        excerpt(rollout.task.id),
        rollout.mode,
        str(rollout.step),
        rollout.status.value,
        _reward(rewards),
        str(len(rollout.attempts)),
        f"{_took(rollout):.1f}s" if attempt else "",
        f"{failure.kind.value}: {excerpt(failure.message)}" if failure else "",
    )


def _reward(rewards: Mapping[str, float]) -> str:
    """Return only a number if the main channel is the only one."""
    if [*rewards] == ["main"]:
        return f"{rewards['main']:+.3f}"
    return ", ".join(f"{channel} {value:+.3f}" for channel, value in rewards.items())


def _took(rollout: Rollout) -> float:
    attempt = rollout.attempts[-1]
    return (attempt.ended_at or time.time()) - attempt.started_at
