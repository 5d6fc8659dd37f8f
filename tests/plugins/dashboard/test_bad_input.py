"""Stores and runs that cannot be read, or not any more, and browsers that come back."""

import asyncio
import json
import shutil
import sqlite3

import pytest
from agl_dashboard._app import _changes

from tests.plugins.dashboard.world import World

PAGES = ("overview", "rollouts", "agents", "prompts", "system")


async def made(directory):
    world = await World(directory).open()
    world.begin_log()
    world.step(1)
    await world.rollout(1.0)
    await world.close()
    world.log.close()
    return world


async def shown(client, run):
    """Every page of a run; none of them fails."""
    found = {}
    for name in PAGES:
        answer = await client.get(f"/run/{run}/-/{name}")
        assert answer.status_code == 200, answer.text
        found[name] = answer.text
    return found


async def read(client, run="run"):
    source = client.sources.get(run)
    await source.look()
    while not source.readable or source.reading.progress.uncounted:
        await source.changed(source.version, 5)
    return source


async def changed_until(source, condition):
    async with asyncio.timeout(60):
        while not condition(source):
            await source.changed(source.version, 5)


async def test_a_run_that_is_deleted_while_it_is_shown(visit, tmp_path):
    await made(tmp_path / "run")
    client = await visit(tmp_path)
    source = await read(client)
    shutil.rmtree(tmp_path / "run")
    await changed_until(source, lambda each: each.problem)
    pages = await shown(client, "run")
    assert "no such file" in pages["rollouts"]
    assert "1<small> / 3" in pages["overview"]  # what was known
    assert "was deleted while it was read" in pages["system"]
    assert "/run/run/" not in (await client.get("/runs")).text

    await made(tmp_path / "run")
    await changed_until(source, lambda each: not each.problem and not each.files.history.deleted)
    assert "was deleted" not in (await shown(client, "run"))["system"]


@pytest.mark.parametrize("damage", ["newer", "empty", "text"])
async def test_a_store_that_cannot_be_read_is_said_on_every_page(visit, tmp_path, damage):
    await made(tmp_path / "run")
    await made(tmp_path / "other")
    store = tmp_path / "run" / "store.db"
    if damage == "newer":
        connection = sqlite3.connect(store)
        connection.execute("UPDATE schema SET version = 999")
        connection.commit()
        connection.close()
    else:
        store.write_bytes(b"" if damage == "empty" else b"no database" * 1000)
    client = await visit(tmp_path)
    pages = await shown(client, "run")
    reason = {"newer": "written by a newer agl-core", "empty": "", "text": "is not a store"}
    assert reason[damage] in pages["rollouts"]
    assert "1<small> / 3" in pages["overview"]
    assert await read(client, "other")


async def test_a_store_that_is_written_is_read_meanwhile(visit, tmp_path):
    await made(tmp_path / "run")
    writer = sqlite3.connect(tmp_path / "run" / "store.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE schema SET version = version")
    client = await visit(tmp_path)
    source = await read(client)
    assert source.reading.progress.rows == 1
    await shown(client, "run")
    writer.execute("ROLLBACK")
    writer.close()


async def test_a_store_that_is_locked_keeps_no_page_waiting(visit, tmp_path, monkeypatch):
    monkeypatch.setattr("agl_dashboard._sources._PATIENCE_S", 0.01)
    await made(tmp_path / "run")
    owner = sqlite3.connect(tmp_path / "run" / "store.db", isolation_level=None)
    owner.execute("PRAGMA locking_mode = EXCLUSIVE")
    owner.execute("UPDATE schema SET version = version")
    client = await visit(tmp_path)
    pages = await shown(client, "run")
    assert "1<small> / 3" in pages["overview"]
    for name in ("overview", "rollouts", "system"):
        assert "is still being opened" in pages[name]
    owner.close()
    source = client.sources.get("run")
    await changed_until(source, lambda each: each.readable)
    pages = await shown(client, "run")
    assert "is still being opened" not in "".join(pages.values())


async def test_a_browser_that_comes_back_after_long_gets_the_state_at_once(visit, tmp_path):
    """Its version is too old, of another server, or no version at all."""
    await made(tmp_path / "run")
    client = await visit(tmp_path)
    source = await read(client)
    instance = source.version.partition(".")[0]
    for since in (f"{instance}.0", f"{instance}.999999", "dash_gone.7", "", "x" * 10_000, "\x00"):
        events = _changes(source, since)
        assert await anext(events) == b"retry: 2000\n\n"
        said = (await anext(events)).decode()
        assert said.startswith(f"event: change\nid: {source.version}\ndata: ")
        assert json.loads(said.partition("data: ")[2])["rows"] == 1
        await events.aclose()


async def test_a_run_that_was_closed_in_between_opens_again(visit, tmp_path, monkeypatch):
    """After a while without viewers its store is closed."""
    await made(tmp_path / "run")
    client = await visit(tmp_path)
    source = await read(client)
    monkeypatch.setattr("agl_dashboard._sources._IDLE_S", 0.0)
    await source._task
    assert not source.readable
    monkeypatch.undo()
    before = source.version
    events = _changes(source, before)
    await anext(events)
    assert b"event: change" in await anext(events)
    assert source.readable
    await events.aclose()


async def test_the_events_of_a_run_that_is_not_there_end(visit, tmp_path):
    await made(tmp_path / "run")
    client = await visit(tmp_path)
    assert (await client.get("/events/none")).status_code == 404
