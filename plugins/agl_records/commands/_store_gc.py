"""``agl store gc``."""

from __future__ import annotations

import asyncio
import time

import click
from agl_stores import StoreAddress, rollout_pages

from agl_core.cli.group import CliState, debug_option, json_option, plugin_option
from agl_core.cli.output import STDOUT
from agl_core.errors import ConfigError
from agl_core.store import Prunable, Pruned
from agl_core.types import Rollout, RolloutQuery, RolloutStatus
from agl_records.commands._output import write_records
from agl_records.commands._selection import located, reading, seconds, store_argument, store_of

_FINAL = tuple(status for status in RolloutStatus if status.final)
_BATCH = 1000


@click.command()
@store_argument
@click.option(
    "--consumed",
    is_flag=True,
    help="Of rollouts that were trained on; the default.",
)
@click.option(
    "--older-than",
    metavar="AGE",
    help="Of rollouts that ended longer ago, such as 7d or 12h, trained on or not.",
)
@click.option("--run", "run_id", metavar="NAME", help="Of this run only.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@plugin_option
@json_option
@debug_option
@click.pass_obj
def command(  # noqa: PLR0913 - one per option
    state: CliState,
    *,
    target: str,
    consumed: bool,
    older_than: str | None,
    run_id: str | None,
    dry_run: bool,
    json_file: str | None,
) -> None:
    """Delete the spans of rollouts that are no longer needed, and free their space.

    With both --consumed and --older-than, both must hold. Rollouts, attempts, failures and
    outputs stay. Queued and running rollouts are kept, so the run may be active.
    """
    address = located(state, target)
    ended_by = time.time() - seconds(older_than) if older_than is not None else None

    def chosen(rollout: Rollout) -> bool:
        ended = rollout.attempts[-1].ended_at if rollout.attempts else rollout.created_at
        if ended_by is not None and (ended is None or ended > ended_by):
            return False
        return rollout.consumed or not (consumed or ended_by is None)

    async def work() -> Pruned:
        store = store_of(state, address)
        if not isinstance(store, Prunable):
            raise ConfigError(
                f"Store {address.config.name!r} cannot delete the spans of single rollouts"
            )
        query = RolloutQuery(statuses=_FINAL, run_id=run_id)
        async with reading(state, address, for_people=True) as reader:
            ids = [r.id async for page in rollout_pages(reader, query) for r in page if chosen(r)]
        total = Pruned()
        for start in range(0, len(ids), _BATCH):
            total += await store.prune(ids[start : start + _BATCH], dry_run=dry_run)
        return total

    before = _file_size(address)
    pruned = asyncio.run(work())
    after = _file_size(address)
    if json_file is not None:
        figures = {
            "dry_run": dry_run,
            "rollouts": pruned.rollouts,
            "spans": pruned.spans,
            "bytes": pruned.size,
            "file_bytes_before": before,
            "file_bytes_after": after,
        }
        write_records(figures, json_file)
    if json_file != STDOUT:
        _report(pruned, dry_run=dry_run, before=before, after=after)


def _report(pruned: Pruned, *, dry_run: bool, before: int | None, after: int | None) -> None:
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{verb} {pruned.spans} spans ({_size(pruned.size)}) of {pruned.rollouts} rollouts")
    if pruned.kept:
        click.echo(f"kept {pruned.kept} rollouts that are not final")
    if not dry_run and before is not None and after is not None:
        click.echo(f"the file went from {_size(before)} to {_size(after)}")


def _file_size(address: StoreAddress) -> int | None:
    """Return bytes on disk, including the write-ahead log; None if the store is not a file."""
    path = address.file
    if path is None:
        return None
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (log.stat().st_size if log.is_file() else 0)


def _size(size: int) -> str:
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:  # noqa: PLR2004 - decimal units
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
