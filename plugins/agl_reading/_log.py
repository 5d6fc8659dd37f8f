"""The log of a run, followed while it grows: its events, and what they say of the run's state."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, cast

import msgspec

from agl_core.types import Evaluation, StepReport

RunStatus = Literal["running", "finished", "failed", "stopped", "unknown"]
"""``stopped``: its process has ended and wrote no end; ``unknown``: there is no log."""

LOG: Final = "log.jsonl"
"""Name of the log in a run's directory."""
REPORT: Final = "report.json"
"""Name of the report in a run's directory, which is written at its end."""
_LONGEST: Final = 1 << 24
"""Bytes of a line; a longer one is damaged."""
_HEAD: Final = 256
"""Bytes at the beginning of a log by which it is known again: its first line has process and time."""
_CHECKPOINTS: Final = 3
_UNREADABLE: Final = (ValueError, TypeError, LookupError, RecursionError, OverflowError)
"""Errors of a line that is no event; msgspec's are ValueErrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One line of a log."""

    kind: str
    """``started``, ``stage``, ``step``, ``evaluation``, ``finished``, ``ended``, or of a later version."""
    at: float = 0.0
    """Unix seconds; 0 if unknown."""
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """Everything else."""
    step: StepReport | None = None
    """The report of a ``step``."""
    evaluation: Evaluation | None = None
    """The report of an ``evaluation``."""

    @classmethod
    def parse(cls, line: bytes) -> LogEvent:
        """Read a line.

        Raises:
            ValueError: it is not JSON, or a report lacks a field; `TypeError`, `LookupError`,
                `RecursionError` and `OverflowError` as well.
        """
        found = _mapping(json.loads(line))
        kind, at, report = str(found.pop("event")), found.pop("at", None), found.get("report")
        known = float(at) if isinstance(at, (int, float)) else 0.0
        if kind == "step":
            step = msgspec.convert(report, StepReport, strict=False)
            return cls(kind=kind, at=known, step=step)
        if kind == "evaluation":
            evaluation = msgspec.convert(report, Evaluation, strict=False)
            return cls(kind=kind, at=known, evaluation=evaluation)
        if kind == "started":
            found |= {"pid": int(found["pid"]), "host": str(found["host"])}
            found["steps"] = int(found.get("steps") or 0)
        return cls(kind=kind, at=known, fields=found)


class LogSink(Protocol):
    """Takes what a `LogReader` reads."""

    def restart(self) -> None:
        """Forget all events: the log was replaced or cut, and is read from its beginning."""
        ...

    def take(self, event: LogEvent) -> None:
        """Take over the next event."""
        ...


class LogReader:
    """Reads the events that were added to a log since the last call.

    A part of a line waits until the line is whole. A line that cannot be read, or is longer than
    16 MiB, is counted. A log that another file replaced, or that was cut, is read from its beginning.
    """

    def __init__(self, directory: Path) -> None:
        """Follow the log in a run's directory, which may not exist yet."""
        self._path = directory / LOG
        self._head = b""
        self._position = 0
        """Position after the last whole line."""
        self._too_long = False
        """Whether the position is within a line that is too long."""
        self.damaged = 0
        """Lines that could not be read."""
        self.deleted = False
        """Whether a log that was read is gone."""

    def read(self, sink: LogSink) -> bool:
        """Give the new events to a sink.

        Returns:
            Whether there is a log.

        Raises:
            OSError: the log cannot be read; that there is none is no error.
        """
        try:
            stream = self._path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            self.deleted = self._position > 0
            return False
        self.deleted = False
        with stream:
            head = stream.read(_HEAD)
            size = os.fstat(stream.fileno()).st_size
            if size < self._position or not head.startswith(self._head):
                self._position, self._too_long, self.damaged = 0, False, 0
                sink.restart()
            self._head = head
            stream.seek(self._position)
            self._read(stream, sink)
        return True

    def _read(self, stream: BinaryIO, sink: LogSink) -> None:
        while line := stream.readline(_LONGEST):
            whole = line.endswith(b"\n")
            if not whole and len(line) < _LONGEST and not self._too_long:
                return
            self._position += len(line)
            if not whole or self._too_long:
                self.damaged += not self._too_long
                self._too_long = not whole
            elif line.strip():
                self._take(line, sink)

    def _take(self, line: bytes, sink: LogSink) -> None:
        try:
            event = LogEvent.parse(line)
        except _UNREADABLE:
            self.damaged += 1
        else:
            sink.take(event)


@dataclass(slots=True)
class LoggedRun:
    """What a run's log says of its process and its end."""

    pid: int = 0
    host: str = ""
    planned: int = 0
    """Number of steps of the run; 0 if unknown."""
    started_at: float = 0.0
    """Unix seconds of the first start; a run may be resumed."""
    resumed_at: float = 0.0
    """Unix seconds of the last start."""
    updated_at: float = 0.0
    stage: str = ""
    """The work since the last step or evaluation."""
    end: RunStatus | None = None
    error: str = ""
    """Why the run failed."""

    @property
    def status(self) -> RunStatus:
        if self.end is not None:
            return self.end
        if not self.pid:
            return "unknown"
        here = self.host == socket.gethostname()
        return "stopped" if here and not is_alive(self.pid) else "running"

    @property
    def process(self) -> str:
        """The process that runs or ran the run."""
        return f"process {self.pid} on {self.host}"

    def note(self, event: LogEvent) -> None:
        """Take over what an event says of the state."""
        self.updated_at = event.at or self.updated_at
        match event.kind:
            case "stage":
                self.stage = str(event.fields.get("doing", ""))
            case "started":
                self.started_at = self.started_at or event.at
                self.resumed_at = event.at
                self.pid, self.host = event.fields["pid"], event.fields["host"]
                self.planned = event.fields["steps"]
                self.end, self.error, self.stage = None, "", ""
            case "step" | "evaluation":
                self.stage = ""
                self.planned = (event.step.steps if event.step else 0) or self.planned
            case "finished":
                self.end, self.stage = "finished", ""
            case "ended":
                self.end, self.error = "failed", str(event.fields.get("error", ""))
                self.stage = ""
            case _:
                pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Steps and evaluations of a run's report, or of a checkpoint."""

    steps: list[StepReport]
    evaluations: list[Evaluation]
    at: float
    """Unix seconds at which it was written."""
    wall_s: float = 0.0
    finished: bool = False
    """Whether it is the report, which a run writes at its end."""


def read_record(directory: Path) -> RunRecord | None:
    """Read a run's report, or else its newest checkpoint; None without one that can be read."""
    states = sorted((directory / "checkpoints").glob("step-*/state.json"), reverse=True)
    for path in (directory / REPORT, *states[:_CHECKPOINTS]):
        try:
            found = _mapping(json.loads(path.read_bytes()))
            return RunRecord(
                steps=msgspec.convert(found.get("steps") or [], list[StepReport], strict=False),
                evaluations=msgspec.convert(
                    found.get("evaluations") or [], list[Evaluation], strict=False
                ),
                at=path.stat().st_mtime,
                wall_s=float(found.get("wall_s") or 0.0),
                finished=path.name == REPORT,
            )
        except (OSError, *_UNREADABLE):
            continue
    return None


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine runs; True if that cannot be known."""
    if os.name != "posix":
        return True  # there, signal 0 would end the process
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # of another user
    return True


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return cast("dict[str, Any]", value)
