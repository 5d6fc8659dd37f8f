"""Follow the log of a run that another process writes, and show its events on a display."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from agl_core.clocks import monotonic, wall
from agl_core.types import Evaluation, Report, StepReport
from agl_progress._display import Display

LOG: Final = "log.jsonl"
REPORT: Final = "report.json"

FollowedState = Literal["unknown", "running", "finished", "failed", "stopped"]
"""``unknown``: there is no log; ``stopped``: the process has ended and wrote no end."""


class LogFollower:
    """Reads what is new in a run's log and shows it on a display.

    Without a log, the report that the run left is shown. A run that is resumed continues its log.
    """

    def __init__(self, directory: Path, display: Display) -> None:
        self._directory = directory
        self._display = display
        self._inode = 0
        self._position = 0
        """Position after the last whole line."""
        self._end: FollowedState | None = None
        self._pid = 0
        self._host = ""
        self.error = ""
        """Why the run failed."""
        self.damaged = 0
        """Lines that could not be read."""

    @property
    def process(self) -> str:
        """The process that runs or ran the run."""
        return f"process {self._pid} on {self._host}"

    @property
    def state(self) -> FollowedState:
        if self._end is not None:
            return self._end
        if not self._pid:
            return "unknown"
        here = self._host == socket.gethostname()
        return "stopped" if here and not _alive(self._pid) else "running"

    def read(self) -> None:
        """Show what was written since the last call.

        The last part of a line stays for the next call; a line that cannot be read is counted.

        Raises:
            OSError: the log cannot be read; that there is none is no error.
        """
        try:
            stream = (self._directory / LOG).open("rb")
        except FileNotFoundError:
            self._read_report()
            return
        with stream:
            stat = os.fstat(stream.fileno())
            if stat.st_ino != self._inode or stat.st_size < self._position:
                self._inode, self._position = stat.st_ino, 0
            stream.seek(self._position)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event: Any = json.loads(line)
            self._show(cast("dict[str, Any]", event))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self.damaged += 1

    def _show(self, event: dict[str, Any]) -> None:
        report = event.get("report")
        match event.get("event"):
            case "started":
                self._end, self.error = None, ""
                self._pid, self._host = int(event["pid"]), str(event["host"])
                age = max(0.0, wall() - float(event["at"]))
                name, steps = self._directory.name, int(event["steps"])
                self._display.begin(name, steps, began=monotonic() - age)
            case "stage":
                self._display.stage(str(event["doing"]))
            case "step":
                self._display.step(msgspec.convert(report, StepReport, strict=False))
            case "evaluation":
                self._display.evaluation(msgspec.convert(report, Evaluation, strict=False))
            case "finished":
                self._end = "finished"
            case "ended":
                self._end, self.error = "failed", str(event.get("error", ""))
            case _:
                pass  # of a later version

    def _read_report(self) -> None:
        if self._end is not None:
            return
        try:
            data = (self._directory / REPORT).read_bytes()
            report = msgspec.json.decode(data, type=Report, strict=False)
        except (OSError, ValueError):
            return
        steps = report.steps[-1].steps if report.steps else 0
        self._display.begin(self._directory.name, steps, began=monotonic() - report.wall_s)
        for step in report.steps:
            self._display.step(step)
        for evaluation in report.evaluations:
            self._display.evaluation(evaluation)
        self._end = "finished"


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # there, signal 0 ends the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True
