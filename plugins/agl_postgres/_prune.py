"""Deletion of spans that are not needed any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from agl_stores import key
from msgspec.structs import replace

from agl_core.store import Pruned
from agl_postgres._connect import Server, connection_errors
from agl_postgres._locked import LockedRows
from agl_postgres._rows import Rows, SyncConnection
from agl_postgres._schema import check_tables

_ROLLOUTS_PER_WRITE: Final = 100
"""Small, so that a run that writes to the same rollouts waits only briefly."""


def prune_spans(server: Server, rollout_ids: Sequence[str], *, dry_run: bool) -> Pruned:
    """Run `Prunable.prune` through a new connection; other processes may use the store."""
    total = Pruned()
    with connection_errors(server.shown):
        check_tables(server, create=False)
        connection: psycopg.Connection[tuple[Any, ...]] = server.connect()
        try:
            server.prepare(connection)
            for start in range(0, len(rollout_ids), _ROLLOUTS_PER_WRITE):
                piece = rollout_ids[start : start + _ROLLOUTS_PER_WRITE]
                with connection.transaction():
                    total += _prune(connection, piece, dry_run=dry_run)
        finally:
            connection.close()
    return total


def _prune(connection: SyncConnection, ids: Sequence[str], *, dry_run: bool) -> Pruned:
    rows = Rows(connection) if dry_run else LockedRows(connection)
    found = rows.rollouts(ids)
    final = [rollout for rollout in found.values() if rollout.status.final]
    sizes = connection.execute(
        "SELECT count(*), sum(octet_length(spans.body))::bigint FROM agl_rollouts rollouts "
        "JOIN agl_attempts attempts ON attempts.rollout = rollouts.number "
        "JOIN agl_spans spans ON spans.attempt = attempts.number "
        "WHERE rollouts.id = ANY(%s) GROUP BY rollouts.number",
        [[key(rollout.id) for rollout in final]],
    ).fetchall()
    if not dry_run:
        rows.drop_spans([rollout.id for rollout in final])
        for rollout in final:
            rows.save_rollout(replace(rollout, consumed=True))
        rows.flush()
    return Pruned(
        rollouts=len(sizes),
        spans=sum(spans for spans, _ in sizes),
        size=sum(size for _, size in sizes),
        kept=len(found) - len(final),
    )
