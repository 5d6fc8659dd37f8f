"""Deletion of the spans of given rollouts, and of the free pages of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from agl_core.store._schema import FileSettings, give_back_pages, roll_back, store_errors
from agl_core.store._sql import SqlRecords, key
from agl_core.store.reader import connect_existing

_ROLLOUTS_PER_WRITE = 100
"""Small, so that a run that writes to the same file waits only briefly."""
_CHECKPOINT_WAIT_MS = 1000


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what a pruning deleted, or would delete."""

    rollouts: int = 0
    """Number of rollouts that had spans."""
    spans: int = 0
    size: int = 0
    """Bytes of the spans' records."""
    kept: int = 0
    """Number of requested rollouts that were not pruned, because they are not final."""

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            rollouts=self.rollouts + other.rollouts,
            spans=self.spans + other.spans,
            size=self.size + other.size,
            kept=self.kept + other.kept,
        )


@runtime_checkable
class Prunable(Protocol):
    """A store that can permanently delete spans, whether or not it is open."""

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Delete the spans of the final rollouts among the given ones, and mark these as consumed.

        Rollouts, attempts, failures and outputs stay.

        Args:
            rollout_ids: The rollouts; unknown ids and rollouts that are not final are ignored.
            dry_run: Count only.
        """
        ...


def prune_file(settings: FileSettings, rollout_ids: Sequence[str], *, dry_run: bool) -> Pruned:
    """Run `Prunable.prune` on a file through a new connection; other processes may use the file."""
    total = Pruned()
    with store_errors(settings):
        connection = connect_existing(settings, mode="ro" if dry_run else "rw")
        try:
            for start in range(0, len(rollout_ids), _ROLLOUTS_PER_WRITE):
                piece = rollout_ids[start : start + _ROLLOUTS_PER_WRITE]
                total += _prune(connection, piece, dry_run=dry_run)
            if not dry_run:
                _reclaim(connection)
        finally:
            connection.close()
    return total


def _prune(connection: sqlite3.Connection, ids: Sequence[str], *, dry_run: bool) -> Pruned:
    connection.execute("BEGIN" if dry_run else "BEGIN IMMEDIATE")
    try:
        records = SqlRecords(connection)
        found = records.rollouts(ids)
        final = [rollout for rollout in found.values() if rollout.status.final]
        sizes = [_size(connection, rollout.id) for rollout in final]
        pruned = Pruned(
            rollouts=sum(1 for spans, _ in sizes if spans),
            spans=sum(spans for spans, _ in sizes),
            size=sum(size for _, size in sizes),
            kept=len(found) - len(final),
        )
        if not dry_run:
            records.drop_spans([rollout.id for rollout in final])
            for rollout in final:
                records.save_rollout(replace(rollout, consumed=True))
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    return pruned


def _size(connection: sqlite3.Connection, rollout_id: str) -> tuple[int, int]:
    """Return number and bytes of a rollout's spans."""
    return connection.execute(
        "SELECT count(*), coalesce(sum(length(spans.body)), 0) FROM spans "
        "JOIN attempts ON attempts.number = spans.attempt "
        "WHERE attempts.rollout = (SELECT number FROM rollouts WHERE id = ?)",
        (key(rollout_id),),
    ).fetchone()


def _reclaim(connection: sqlite3.Connection) -> None:
    """Remove the file's free pages, in pieces, and empty the write-ahead log if no reader uses it.

    A file without incremental auto-vacuum keeps its free pages and reuses them.
    """
    while give_back_pages(connection):
        pass
    connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
