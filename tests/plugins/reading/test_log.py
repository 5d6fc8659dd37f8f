"""The reader of a run's log: whatever happens to the file."""

import json
import os
import socket
import subprocess
import sys

import pytest
from agl_reading import LoggedRun, LogReader, is_alive, read_record

STEP = {"event": "step", "at": 2.0, "report": {"step": 1, "steps": 3, "reward": 0.5}}
STARTED = {"event": "started", "at": 1.0, "pid": os.getpid(), "host": socket.gethostname()}


class Sink:
    def __init__(self):
        self.events = []
        self.restarts = 0

    def restart(self):
        self.restarts += 1
        self.events.clear()

    def take(self, event):
        self.events.append(event)

    @property
    def kinds(self):
        return [each.kind for each in self.events]


class Log:
    """A log that is written and followed."""

    def __init__(self, directory):
        self.path = directory / "log.jsonl"
        self.reader = LogReader(directory)
        self.sink = Sink()

    def write(self, *events, end="\n"):
        with self.path.open("a") as stream:
            stream.write("".join(json.dumps(each) + end for each in events))

    def read(self):
        self.found = self.reader.read(self.sink)
        return self.sink.kinds


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_new_events_are_read_once(log):
    assert log.read() == []
    assert not log.found
    log.write(STARTED, STEP)
    assert log.read() == ["started", "step"]
    assert log.found
    log.write({"event": "later", "at": "soon", "more": [1]})
    assert log.read() == ["started", "step", "later"]
    started, step, later = log.sink.events
    assert started.fields == {"pid": os.getpid(), "host": socket.gethostname(), "steps": 0}
    assert (step.step.reward, step.at) == (0.5, 2.0)
    assert (later.at, later.fields) == (0.0, {"more": [1]})
    assert (log.reader.damaged, log.sink.restarts) == (0, 0)


def test_a_line_waits_until_it_is_whole(log):
    log.write(STEP, end="")
    assert log.read() == []
    log.write({}, end="")
    with log.path.open("a") as stream:
        stream.write("\n")
    log.read()
    assert log.reader.damaged == 1  # two objects in one line
    text = json.dumps(STEP)
    for part in (text[:7], text[7:], "\n"):
        assert log.read() == []
        with log.path.open("a") as stream:
            stream.write(part)
    assert log.read() == ["step"]


def test_a_long_line_is_read_and_one_without_end_is_skipped(log, monkeypatch):
    long = {"event": "stage", "doing": "x" * 5_000_000}
    log.write(long, STEP)
    assert log.read() == ["stage", "step"]
    assert len(log.sink.events[0].fields["doing"]) == 5_000_000

    monkeypatch.setattr("agl_reading._log._LONGEST", 1000)
    log.write("y" * 3500, end="")
    log.read()
    log.write("y" * 3500, end="")
    log.read()
    assert log.reader.damaged == 1
    log.write("", STEP)
    assert log.read() == ["stage", "step", "step"]
    assert log.reader.damaged == 1


def test_a_log_that_was_cut_is_read_from_its_beginning(log):
    log.write(STARTED, STEP, STEP)
    log.read()
    log.path.write_text("")
    log.write(STEP)
    assert log.read() == ["step"]
    assert log.sink.restarts == 1


def test_a_log_that_was_replaced_is_read_from_its_beginning(log):
    """A new file may get the inode of the one that was deleted."""
    log.write(STARTED, STEP)
    log.read()
    with log.path.open("r+") as stream:
        stream.write("".join(json.dumps({**STEP, "at": at}) + "\n" for at in range(20)))
    assert log.read() == ["step"] * 20
    other = log.path.with_name("other")
    other.write_text(
        json.dumps(STARTED) + "\n" + "".join(json.dumps(STEP) + "\n" for _ in range(50))
    )
    other.replace(log.path)
    assert log.read() == ["started", *["step"] * 50]
    assert log.sink.restarts == 2


def test_a_log_that_was_deleted_is_gone_until_there_is_another(log):
    log.write(STARTED, STEP)
    log.read()
    log.path.unlink()
    assert log.read() == ["started", "step"]
    assert (log.found, log.reader.deleted) == (False, True)
    log.write({**STARTED, "at": 3.0})
    assert log.read() == ["started"]
    assert (log.found, log.reader.deleted, log.sink.restarts) == (True, False, 1)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[1]",
        b"{}",
        b'{"event": "step", "report": {"step": "x"}}',
        b'{"event": "evaluation"}',
        b'{"event": "started"}',
        b'{"event": "started", "pid": 1e400, "host": ""}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_counted(log, line):
    log.path.write_bytes(line + b"\n\n")
    log.write(STEP)
    assert log.read() == ["step"]
    assert log.reader.damaged == 1


def test_what_cannot_be_read_is_an_error(log):
    log.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        log.read()


def state(log):
    found = LoggedRun()
    log.read()
    for event in log.sink.events:
        found.note(event)
    return found


def test_the_state_follows_the_events(log):
    assert state(log).status == "unknown"
    log.write({**STARTED, "steps": 9})
    log.write({"event": "stage", "doing": "loading"})
    found = state(log)
    assert (found.status, found.stage, found.planned) == ("running", "loading", 9)
    log.write(STEP)
    assert (state(log).stage, state(log).planned, state(log).updated_at) == ("", 3, 2.0)
    log.write({"event": "ended", "error": "OSError: full"})
    assert (state(log).status, state(log).error) == ("failed", "OSError: full")
    log.write({**STARTED, "at": 9.0})
    found = state(log)
    assert (found.status, found.error) == ("running", "")
    assert (found.started_at, found.resumed_at) == (1.0, 9.0)
    log.write({"event": "finished"})
    assert state(log).status == "finished"


def test_a_process_that_has_ended_is_seen(log):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    log.write({**STARTED, "pid": process.pid})
    assert state(log).status == "stopped"
    log.write({**STARTED, "pid": process.pid, "host": "elsewhere"})
    assert state(log).status == "running"
    assert [is_alive(pid) for pid in (os.getpid(), 0, -1, 1 << 70)] == [True, False, False, False]


def test_the_record_is_the_report_or_the_newest_checkpoint_that_can_be_read(tmp_path):
    assert read_record(tmp_path) is None
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        steps = [{"step": step, "steps": 3, "reward": None}]
        (folder / "state.json").write_text(json.dumps({"steps": steps}))
    record = read_record(tmp_path)
    assert (record.steps[0].step, record.finished) == (2, False)
    (folder / "state.json").write_text("[")
    assert read_record(tmp_path).steps[0].step == 1
    (tmp_path / "report.json").write_text(json.dumps({"steps": [], "wall_s": 2.5}))
    record = read_record(tmp_path)
    assert (record.steps, record.wall_s, record.finished) == ([], 2.5, True)
