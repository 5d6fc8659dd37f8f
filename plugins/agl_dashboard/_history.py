"""What the files of a run's directory say: its steps, evaluations, stages and end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agl_reading import LOG, REPORT, LogEvent, LoggedRun, LogReader, read_record

from agl_core.types import Evaluation, StepReport

_EVENTS: Final = 2000

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
class History(LoggedRun):
    """Steps by number, evaluations by place, and the newest events."""

    steps: dict[int, StepReport] = field(default_factory=dict[int, StepReport])
    evaluations: dict[EvaluationPlace, Evaluation] = field(
        default_factory=dict[EvaluationPlace, Evaluation]
    )
    events: deque[LogEvent] = field(default_factory=lambda: deque[LogEvent](maxlen=_EVENTS))
    damaged: int = 0
    """Lines of the log that cannot be read."""
    deleted: bool = False
    """Whether the log is gone that was read."""

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

    def add(self, event: LogEvent) -> None:
        """Take over one event of the log."""
        self.note(event)
        if event.step is not None:
            self._forget_from(event.step.step)
            self.steps[event.step.step] = event.step
        elif event.evaluation is not None:
            self.evaluations[place_of(event.evaluation)] = event.evaluation
        self.events.append(event)

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
        self._log = LogReader(directory)
        self._seen: tuple[Any, ...] = ()

    def refresh(self) -> History:
        """Read what is new; a file that cannot be read leaves things as they are."""
        stamps = self._stamps()
        if (*stamps, self.history.status) != self._seen:
            self.version += 1
            try:
                self._log.read(self)
            except OSError:
                pass
            else:
                self.history.damaged, self.history.deleted = self._log.damaged, self._log.deleted
            if not self.history.steps:
                self._read_record()
            self._seen = (*stamps, self.history.status)
        return self.history

    def restart(self) -> None:
        self.history = History()

    def take(self, event: LogEvent) -> None:
        self.history.add(event)

    def _stamps(self) -> list[tuple[int, int, int]]:
        stamps: list[tuple[int, int, int]] = []
        for name in (LOG, REPORT, "checkpoints"):
            try:
                stat = (self.directory / name).stat()
            except OSError:
                continue
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return stamps

    def _read_record(self) -> None:
        """Read the report, or the newest checkpoint, of a run without a log."""
        record = read_record(self.directory)
        if record is None:
            return
        history = self.history
        history.steps = {each.step: each for each in record.steps}
        history.evaluations = {place_of(each): each for each in record.evaluations}
        history.planned = record.steps[-1].steps if record.steps else 0
        history.updated_at = record.at
        history.end = "finished" if record.finished else history.end
