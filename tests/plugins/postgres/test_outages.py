"""A server whose disk is full, and one whose standby takes its place."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from agl_postgres import PostgresOptions, PostgresStore
from agl_testing._store_samples import begin, begin_all, rollout, span, succeed

from agl_core.errors import StoreError
from agl_core.types import Ingest, RolloutQuery, RolloutStatus
from tests.plugins.postgres.servers import Server, installed

PATIENCE_S = 120
DISK = "size=96m"


@pytest.fixture
def pair():
    """A primary, and a standby that has all that the primary has acknowledged."""
    primary = Server(installed(), wal_level="replica")
    standby = Server(installed())
    try:
        primary.create()
        standby.follow(primary)
        with primary.connect() as connection:  # not earlier: then every write waits for a standby
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        yield primary, standby
    finally:
        standby.remove()
        primary.remove()


async def test_a_standby_that_takes_over_has_all_that_ended(pair):
    primary, standby = pair
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in pair)
    url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
    store = PostgresStore(PostgresOptions(url=url, pool_size=1, pool_max_overflow=4))
    await store.open()
    ended = [await begin(store) for _ in range(5)]
    for claim in ended:
        await succeed(store, claim, [span(claim)])
    queued = [one.id for one in await store.enqueue([rollout() for _ in range(5)])]
    (running,) = await store.claim("w1", timeout_s=PATIENCE_S)

    await asyncio.to_thread(primary.kill)
    with standby.connect() as connection:
        connection.execute("SELECT pg_promote()")

    await succeed(store, running, [span(running)])
    while claims := await store.claim("w1", timeout_s=1):
        for claim in claims:
            await succeed(store, claim, [span(claim)])
    final = await asyncio.wait_for(store.wait(queued), PATIENCE_S)
    assert {one.status for one in final} == {RolloutStatus.SUCCEEDED}
    assert all(len(one.attempts) == 1 for one in final)
    kept = await store.spans([claim.rollout.id for claim in ended])
    assert len(kept) == 5
    await store.close()


async def test_a_standby_alone_is_refused_with_the_fix(pair):
    _, standby = pair
    store = PostgresStore(PostgresOptions(url=standby.url(), retry_s=0.5))
    with pytest.raises(StoreError, match="only reads, as a standby does"):
        await store.open()


@pytest.fixture
def small(tmp_path_factory):
    """A server with its data, without its log of changes, on a small file system."""
    server = Server(installed())
    server.data.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{DISK},mode=0777", "tmpfs", str(server.data)]
    if os.geteuid() or subprocess.run(command, check=False).returncode:
        server.remove()
        pytest.skip("a small file system needs the right to mount: run as root")
    try:
        changes = server.folder / "changes"
        server.data = server.data / "data"
        server.create("-X", changes)
        yield server
    finally:
        server.stop()
        subprocess.run(["umount", "--lazy", str(server.data.parent)], check=True)
        server.remove()


async def test_a_full_disk_is_named_and_the_store_continues_with_space(small):
    store = PostgresStore(PostgresOptions(url=small.url(), retry_s=1, pool_size=1))
    await store.open()
    claims = await begin_all(store, 4)
    ballast = Path(small.data.parent, "ballast")
    fill(ballast)

    with pytest.raises(StoreError, match="no space on the server's disk: free some") as error:
        await add_many(store, claims)
    assert "\n" not in str(error.value)

    await asyncio.to_thread(ballast.unlink)
    counted = await store.add_spans([large(claim, 10_000) for claim in claims])
    assert counted == Ingest(accepted=len(claims))
    for claim in claims:
        await succeed(store, claim)
    assert len(await store.rollouts(RolloutQuery())) == len(claims)
    await store.close()


async def add_many(store, claims):
    for turn in range(2_000):
        await store.add_spans([large(claim, turn) for claim in claims])


def large(claim, turn):
    return span(claim, sequence=turn, attributes={"text": os.urandom(8_000).hex()})


def fill(file):
    """Write until there is no space."""
    with suppress(OSError), file.open("wb", buffering=0) as writing:
        while writing.write(bytes(65_536)):
            pass
    assert shutil.disk_usage(file.parent).free < 65_536
