"""What the files of a run's directory say: its steps, evaluations, stages and end."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from agl_core.types import Evaluation, StepReport

T = TypeVar("T")

Status = Literal["running", "finished", "failed", "stopped", "unknown"]
"""``stopped``: its process has ended and wrote no end; ``unknown``: there is no log."""

LOG: Final = "log.jsonl"
REPORT: Final = "report.json"
_EVENTS: Final = 500
_PIECE: Final = 1 << 20
_MOST_OF_A_LINE: Final = 1 << 24


EvaluationPlace = tuple[int, int]
"""Step of an evaluation, and the prompt phase that it follows; -1 without one. In order of time."""


def place_of(evaluation: Evaluation) -> EvaluationPlace:
    """Return the place of an evaluation in its run."""
    return evaluation.step, -1 if evaluation.phase is None else evaluation.phase


def place_text(place: EvaluationPlace) -> str:
    """Return a place for addresses: ``20``, or ``20-phase-1`` after a prompt phase."""
    step, phase = place
    return str(step) if phase < 0 else f"{step}-phase-{phase}"


def evaluation_text(evaluation: Evaluation) -> str:
    """Return the place of an evaluation for addresses."""
    return place_text(place_of(evaluation))


def parse_place(text: str) -> EvaluationPlace | None:
    """Read the text of a place; None if it is not one."""
    step, dash, phase = text.partition("-phase-")
    if not step.isdecimal() or (dash and not phase.isdecimal()):
        return None
    return int(step), int(phase) if dash else -1


@dataclass(slots=True)
class History:
    """Steps by number, evaluations by place, and the newest events."""

    steps: dict[int, StepReport] = field(default_factory=dict[int, StepReport])
    evaluations: dict[EvaluationPlace, Evaluation] = field(
        default_factory=dict[EvaluationPlace, Evaluation]
    )
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    planned: int = 0
    """Number of steps of the run; 0 if unknown."""
    started_at: float = 0.0
    updated_at: float = 0.0
    stage: str = ""
    """The work since the last step or evaluation."""
    pid: int = 0
    host: str = ""
    end: Status | None = None
    error: str = ""
    damaged: int = 0
    """Lines that cannot be read."""

    @property
    def status(self) -> Status:
        if self.end is not None:
            return self.end
        if not self.pid:
            return "unknown"
        if self.host != socket.gethostname():
            return "running"
        return "running" if _alive(self.pid) else "stopped"

    @property
    def last(self) -> StepReport | None:
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def step(self) -> int:
        return max(self.steps, default=0)

    @property
    def curve(self) -> list[float]:
        """Rewards of the steps that have one, in order."""
        return [each.reward for _, each in sorted(self.steps.items()) if each.reward is not None]

    @property
    def scored(self) -> list[Evaluation]:
        """Evaluations in the order of their places."""
        return [self.evaluations[place] for place in sorted(self.evaluations)]

    @property
    def evaluation(self) -> Evaluation | None:
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def best(self) -> Evaluation | None:
        return max(self.evaluations.values(), key=lambda each: each.score.mean, default=None)

    def take(self, event: dict[str, Any]) -> None:
        """Take over one event of the log."""
        kind, at = str(event.get("event")), event.get("at")
        if isinstance(at, (int, float)):
            self.updated_at = float(at)
        report = event.get("report")
        if kind == "step":
            step = msgspec.convert(report, StepReport, strict=False)
            self._forget_from(step.step)
            self.steps[step.step] = step
            self.planned = step.steps or self.planned
        elif kind == "evaluation":
            evaluation = msgspec.convert(report, Evaluation, strict=False)
            self.evaluations[place_of(evaluation)] = evaluation
        else:
            self._take_life(kind, event)
        self.stage = str(event.get("doing", "")) if kind == "stage" else ""
        if kind not in ("step", "evaluation"):
            self.events.append(event)

    def _take_life(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "started":
            self.started_at = self.started_at or self.updated_at
            self.pid, self.host = int(event.get("pid") or 0), str(event.get("host", ""))
            self.planned = int(event.get("steps") or 0)
            self.end, self.error = None, ""
        elif kind == "finished":
            self.end = "finished"
        elif kind == "ended":
            self.end, self.error = "failed", str(event.get("error", ""))

    def _forget_from(self, step: int) -> None:
        """Forget later steps and evaluations: a run that was resumed or begun again repeats them."""
        for known in [each for each in self.steps if each > step]:
            del self.steps[known]
        for place in [each for each in self.evaluations if each >= (step, -1)]:
            del self.evaluations[place]


class RunFiles:
    """The files of a run, read again only where they grew."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.history = History()
        self.version = 0
        """Grows with every change."""
        self._seen: tuple[Any, ...] = ()
        self._file: tuple[int, int] = (0, 0)
        """Inode of the log and the position after its last whole line."""

    def refresh(self) -> History:
        """Read what is new; a file that cannot be read leaves things as they are."""
        stamps = self._stamps()
        if (*stamps, self.history.status) != self._seen:
            self.version += 1
            if (self.directory / LOG).is_file():
                self._read_log()
            if not self.history.steps:
                self._read_state()
            self._seen = (*stamps, self.history.status)
        return self.history

    def _stamps(self) -> list[tuple[int, int, int]]:
        stamps: list[tuple[int, int, int]] = []
        for name in (LOG, REPORT, "checkpoints"):
            try:
                stat = (self.directory / name).stat()
            except OSError:
                continue
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return stamps

    def _read_log(self) -> None:
        inode, position = self._file
        try:
            with (self.directory / LOG).open("rb") as stream:
                stat = os.fstat(stream.fileno())
                if stat.st_ino != inode or stat.st_size < position:
                    self.history, position = History(), 0
                stream.seek(position)
                while line := stream.readline(_MOST_OF_A_LINE):
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    self._take(line)
        except OSError:
            return
        self._file = (stat.st_ino, position)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            self.history.take(_mapping(json.loads(line)))
        except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
            self.history.damaged += 1

    def _read_state(self) -> None:
        """Read the report, or the newest checkpoint, of a run without a log."""
        states = sorted((self.directory / "checkpoints").glob("step-*/state.json"))
        for file in (self.directory / REPORT, *reversed(states[-3:])):
            try:
                state = _mapping(json.loads(file.read_bytes()))
                steps = _converted(state, "steps", list[StepReport])
                evaluations = _converted(state, "evaluations", list[Evaluation])
            except (OSError, ValueError, TypeError, RecursionError):
                continue
            self.history.steps = {each.step: each for each in steps}
            self.history.evaluations = {place_of(each): each for each in evaluations}
            self.history.planned = steps[-1].steps if steps else 0
            self.history.updated_at = file.stat().st_mtime
            if file.name == REPORT:
                self.history.end = "finished"
            return


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return cast("dict[str, Any]", value)


def _converted(state: dict[str, Any], name: str, kind: type[list[T]]) -> list[T]:
    return msgspec.convert(state.get(name) or [], kind, strict=False)


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # there, signal 0 would interrupt the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True
