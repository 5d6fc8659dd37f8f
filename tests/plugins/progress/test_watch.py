"""``agl watch``: a run of another process, seen by its log, its report and its store."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading

import msgspec
import pytest
from agl_progress._display import LiveProgress, PlainProgress
from agl_progress._follow import LogFollower
from agl_progress._watch import WatchedRun

from agl_core.cli.group import CliState
from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.store._sqlite import SqliteStore
from agl_core.types import Rollout, StepReport, Task
from tests.core.reports import EVALUATION, REPORT, STEPS
from tests.plugins.progress.test_display import shown, terminal


class Log:
    """Writes what a run writes."""

    def __init__(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "log.jsonl"

    def write(self, event, **fields):
        line = msgspec.json.encode({"event": event, "at": 1e9, **fields})
        with self.path.open("ab") as stream:
            stream.write(line + b"\n")

    def start(self, pid=None, steps=2):
        self.write("started", pid=pid or os.getpid(), host=socket.gethostname(), steps=steps)


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "run")


@pytest.fixture
def gone():
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_run_that_has_finished_is_shown_whole(agl, log):
    log.start()
    log.write("stage", doing="evaluating")
    for step in STEPS:
        log.write("step", report=step)
    log.write("evaluation", report=EVALUATION)
    log.write("finished", wall_s=4.0)

    result = agl("watch", log.path.parent)

    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[:2] == ["run run: 2 steps", "evaluating ..."]
    assert [line.partition("  ")[0] for line in lines[2:4]] == ["step 1/2", "step 2/2"]
    assert lines[4].startswith("eval at step 2: 0.500")
    assert lines[5] == "run finished"


def test_it_waits_for_the_end_of_a_run_that_goes_on(agl, log, monkeypatch):
    log.start()
    looked = threading.Event()
    read = LogFollower.read

    def look(self):
        read(self)
        looked.set()

    def go_on():
        assert looked.wait(60)
        log.write("step", report=STEPS[0])
        log.write("finished", wall_s=1.0)

    monkeypatch.setattr(LogFollower, "read", look)
    writer = threading.Thread(target=go_on)
    writer.start()
    result = agl("watch", log.path.parent, "--every", "0.01")
    writer.join()

    assert result.exit_code == 0
    assert "step 1/2" in result.output


def test_a_run_that_failed_says_why(agl, log):
    log.start()
    log.write("ended", error="TrainingError: nothing to learn from")
    result = agl("watch", log.path.parent)
    assert result.exit_code == 1
    assert "run failed: TrainingError: nothing to learn from" in result.output


def test_a_run_whose_process_was_killed_is_stopped(agl, log, gone):
    log.start(pid=gone)
    result = agl("watch", log.path.parent)
    assert result.exit_code == 1
    assert f"run stopped: process {gone} on {socket.gethostname()}" in result.output


def test_a_run_that_was_resumed_goes_on(agl, log, gone):
    log.start(pid=gone)
    log.write("ended", error="OSError: disk full")
    log.start()
    result = agl("watch", log.path.parent, "--once")
    assert result.exit_code == 0
    assert f"run continues in process {os.getpid()}" in result.output


def test_once_shows_the_rollouts_under_way(agl, log):
    directory = log.path.parent
    save_config(RunConfig(), directory)

    async def enqueue():
        store = SqliteStore(directory / "store.db")
        await store.open()
        await store.enqueue(
            [Rollout(id=f"ro_{n}", task=Task(id="t"), run_id="run") for n in range(3)]
        )
        await store.claim("worker")
        await store.close()

    asyncio.run(enqueue())
    log.start()
    result = agl("watch", directory, "--once")
    assert "1 running, the oldest for " in result.output
    assert "2 queued" in result.output


def test_a_run_without_log_is_shown_by_its_report(agl, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_bytes(msgspec.json.encode(REPORT))
    result = agl("watch", tmp_path / "run")
    assert "step 2/2" in result.output
    assert result.output.endswith("run finished\n")


def test_a_log_that_is_deleted_while_it_is_followed_is_said(agl, log):
    log.start()
    watch = WatchedRun(CliState(), "run", log.path.parent, PlainProgress(terminal()))
    asyncio.run(watch.run(interval_s=None))
    assert watch.conclusion()[0] == f"run continues in {watch._follower.process}"
    log.path.unlink()
    asyncio.run(watch.run(interval_s=None))
    assert "log was deleted" in watch.conclusion()[0]


def test_a_run_that_has_not_begun_is_no_error(agl, tmp_path):
    result = agl("watch", tmp_path, "--once")
    assert result.exit_code == 0
    assert "has written no log" in result.output


def test_what_is_no_run_is_refused(agl, tmp_path):
    result = agl("watch", tmp_path / "none")
    assert result.exit_code == 2
    assert "no such file or directory exists" in result.output


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\n",
        b"[1]\n",
        b'{"event": "step", "report": {"step": "x"}}\n',
        b'{"event": "started"}\n',
    ],
)
def test_a_damaged_line_is_counted_and_left_out(agl, log, line):
    log.start()
    with log.path.open("ab") as stream:
        stream.write(line)
    log.write("step", report=STEPS[0])
    log.write("finished", wall_s=1.0)
    result = agl("watch", log.path.parent)
    assert "step 1/2" in result.output
    assert "lines of the log that cannot be read: 1" in result.output


def test_a_line_is_shown_once_it_is_whole(log):
    display = LiveProgress(terminal())
    follower = LogFollower(log.path.parent, display)
    log.start()
    line = json.dumps({"event": "step", "report": msgspec.to_builtins(STEPS[0])}).encode()
    with log.path.open("ab") as stream:
        stream.write(line[:10])
    follower.read()
    assert "reward" not in shown(display, terminal())
    with log.path.open("ab") as stream:
        stream.write(line[10:] + b"\n")
    follower.read()
    assert "reward" in shown(display, terminal())


def test_evaluations_of_one_step_are_shown_and_repeated_ones_once(log):
    display = LiveProgress(terminal())
    after = msgspec.structs.replace(EVALUATION, phase=0)
    for evaluation in (EVALUATION, EVALUATION, after):
        log.write("evaluation", report=evaluation)
    LogFollower(log.path.parent, display).read()
    text = shown(display, terminal())
    assert text.count("eval at step 2") == 1
    assert text.count("eval at phase 0") == 1


def test_the_panel_of_a_resumed_run_shows_each_step_once(log):
    display = LiveProgress(terminal())
    display.under_way = "3 running, 1 queued"
    for number in (1, 2, 3, 2):
        log.write("step", report=StepReport(step=number, steps=9, reward=0.5, lost={"late": 1}))
    LogFollower(log.path.parent, display).read()
    text = shown(display, terminal())
    assert "2/9" in text
    assert "late=2" in text
    assert "3 running, 1 queued" in text
