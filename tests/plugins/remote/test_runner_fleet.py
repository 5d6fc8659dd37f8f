"""Worker processes: replaced when they end, ended together, never orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agl_remote._runner_fleet import Fleet, FleetOptions

from agl_core.errors import ConfigError
from tests.plugins.remote import fleet_work

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")


@pytest.fixture
def lives(tmp_path):
    folder = tmp_path / "lives"
    folder.mkdir()
    return folder


@pytest.fixture
def running():
    """``async with running(fleet)``: it runs inside, and is cancelled on leaving."""

    @contextlib.asynccontextmanager
    async def running(fleet):
        task = asyncio.create_task(fleet.run())
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return running


def fleet_of(work, folder, *, processes=2, **options):
    settings = FleetOptions(processes=processes, first_pause_s=0.01, **options)
    return Fleet(work, (str(folder),), settings)


async def until(condition):
    """Processes tell by files, which nobody can be notified of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def begun(folder):
    return {int(path.name) for path in folder.iterdir()}


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_all_work_until_the_fleet_is_ended_and_tell_what_they_did(lives, running):
    fleet = fleet_of(fleet_work.waits, lives, processes=3)
    async with running(fleet):
        await until(lambda: len(begun(lives)) == 3)
        pids = fleet.pids
        assert sorted(pids) == sorted(begun(lives))
    assert not any(alive(pid) for pid in pids)
    assert (fleet.record.ended, fleet.record.losses.counts) == (6, {"late_span": 3})
    assert (fleet.record.died, fleet.record.recycled, fleet.record.killed) == (0, 0, 0)


async def test_one_that_dies_is_replaced_and_what_it_told_is_kept(lives, running, caplog):
    fleet = fleet_of(fleet_work.dies_once, lives, processes=1)
    async with running(fleet):
        await until(lambda: len(begun(lives)) == 2)
    assert fleet.record.died == 1
    assert fleet.record.ended == 7
    assert fleet.record.losses.counts == {"dropped_span": 3, "late_span": 1}
    assert "Worker 1 ended with status -9: starting another" in caplog.text


async def test_one_that_asks_for_it_is_replaced_and_counted_apart(lives, running):
    fleet = fleet_of(fleet_work.recycles_once, lives, processes=1)
    async with running(fleet):
        await until(lambda: len(begun(lives)) == 2)
    assert (fleet.record.recycled, fleet.record.died) == (1, 0)


async def test_one_that_cannot_work_ends_the_fleet(lives):
    with pytest.raises(ConfigError, match="cannot work"):
        await fleet_of(fleet_work.hopeless, lives).run()


async def test_those_that_cannot_work_in_one_moment_are_all_heard(lives, monkeypatch, caplog):
    async def fill(place, threads):
        raise ConfigError(f"Worker {place + 1} cannot work")

    unheard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    fleet = fleet_of(fleet_work.waits, lives, processes=2)
    monkeypatch.setattr(fleet, "_fill", fill)
    with pytest.raises(ConfigError) as raised:
        await fleet.run()
    told = {str(raised.value), *(record.getMessage() for record in caplog.records)}
    assert told == {"Worker 1 cannot work", "Worker 2 cannot work"}
    del raised
    gc.collect()
    assert not unheard


async def test_pauses_grow_between_the_lives_of_one_that_dies_at_once(lives, running, caplog):
    fleet = Fleet(
        fleet_work.hopeless,
        ("one argument too few", "and one too many"),
        FleetOptions(processes=1, first_pause_s=0.01, longest_pause_s=0.04),
    )
    async with running(fleet):
        await until(lambda: fleet.record.died == 4)
    pauses = [record.args[2] for record in caplog.records if "starting another" in record.msg]
    assert pauses == [0.01, 0.02, 0.04, 0.04]


@pytest.mark.parametrize("work", [fleet_work.will_not_end, fleet_work.deaf])
async def test_one_that_will_not_end_is_ended(lives, running, work):
    fleet = fleet_of(work, lives, processes=1, stop_s=0.2)
    async with running(fleet):
        await until(lambda: begun(lives))
    assert not any(alive(pid) for pid in begun(lives))


async def test_cancelled_twice_it_does_not_wait(lives):
    fleet = fleet_of(fleet_work.deaf, lives, processes=2, stop_s=600)
    task = asyncio.create_task(fleet.run())
    await until(lambda: len(begun(lives)) == 2)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(alive(pid) for pid in begun(lives))


async def test_sigterm_to_a_worker_ends_it_and_another_takes_its_place(lives, running):
    fleet = fleet_of(fleet_work.waits, lives, processes=1)
    async with running(fleet):
        await until(lambda: begun(lives))
        (first,) = begun(lives)
        os.kill(first, signal.SIGTERM)
        await until(lambda: len(begun(lives)) == 2)
    assert fleet.record.ended == 4


SUPERVISOR = """
import asyncio, sys
from agl_remote._runner_fleet import Fleet, FleetOptions
from tests.plugins.remote import fleet_work

if __name__ == "__main__":
    options = FleetOptions(processes=2, stop_s=0.2)
    asyncio.run(Fleet(fleet_work.{work}, (sys.argv[1],), options).run())
"""


@pytest.mark.parametrize("work", ["waits", "will_not_end"])
def test_workers_do_not_outlive_a_supervisor_that_was_killed(lives, tmp_path, work):
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR.format(work=work), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    supervisor = subprocess.Popen([sys.executable, str(script), str(lives)], env=environment)
    while len(begun(lives)) < 2:
        time.sleep(0.01)
    pids = begun(lives)
    supervisor.kill()
    supervisor.wait()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in pids)


def test_what_a_worker_is_given_can_be_pickled():
    """Windows and macOS start processes that share nothing with their parent."""
    assert pickle.loads(pickle.dumps(fleet_work.waits)) is fleet_work.waits
