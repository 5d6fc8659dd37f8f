"""Plans of the statements that writers and merged reads keep: made once, perhaps for empty tables."""

from __future__ import annotations

import itertools
import re

import psycopg
import pytest
from agl_postgres import PostgresStore, _locked, _pending, _rows
from agl_testing._store_samples import begin, rollout, span, succeed

LOCK = f"{_locked._FIELDS} WHERE "
STATEMENTS = {
    "rollouts by name": f"{LOCK}number = {_locked._NAMED}{_locked._IN_ORDER}",
    "attempts by name": f"{_locked._ATTEMPTS}{_locked._NAMED} ORDER BY number",
    "attempts of rollouts": f"{_locked._ATTEMPTS}ANY(%s) ORDER BY number",
    "queue": _locked._QUEUED,
    "due": f"{LOCK}{_rows.DUE}{_locked._IN_ORDER}",
    "states": _pending._STATES,
    "new attempts": _pending._ATTEMPTS,
    "new rollouts": _pending._ROLLOUTS,
    "new spans": _pending._SPANS,
    "read rollouts": f"{_rows.READ_ROLLOUTS}id = ANY(%s)",
    "read spans": _rows.READ_SPANS,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_plan_for_empty_tables_scans_a_table(options, name):
    numbers = itertools.count(1)
    statement = re.sub("%[sb]", lambda _: f"${next(numbers)}", STATEMENTS[name])
    with psycopg.connect(options.url) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE known AS {statement}")
        nothing = ", ".join(["NULL"] * (next(numbers) - 1))
        plan = connection.execute(f"EXPLAIN EXECUTE known ({nothing})").fetchall()
    assert [line for (line,) in plan if "Seq Scan" in line] == []


async def test_statements_of_a_writer_are_planned_once(options, monkeypatch):
    kept = []
    give_back = psycopg.Connection.close

    def look(connection):
        if connection.prepare_threshold == 0:
            kept.append(
                connection.execute(
                    "SELECT current_setting('plan_cache_mode'), name, custom_plans "
                    "FROM pg_prepared_statements WHERE generic_plans > 0"
                ).fetchall()
            )
        give_back(connection)

    monkeypatch.setattr(psycopg.Connection, "close", look)
    store = PostgresStore(options)
    await store.open()
    for _ in range(3):
        claim = await begin(store)
        await store.add_spans([span(claim)])
        await succeed(store, claim)
        await store.enqueue([rollout()])
        await store.claim("w1")
        await store.spans([claim.rollout.id])
    await store.close()
    assert len(kept) == 3, "the writers of spans and states, and merged reads"
    for statements in kept:
        assert {mode for mode, *_ in statements} == {"force_generic_plan"}
        assert {custom for *_, custom in statements} == {0}
