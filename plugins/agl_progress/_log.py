"""The log of a training: one line of JSON per event in ``log.jsonl`` of the run's directory."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from agl_core.clocks import wall
from agl_core.files import make_private_directory, private_opener
from agl_core.interfaces import Observer
from agl_core.text import json_bytes
from agl_core.types import Evaluation, Report, StepReport

_log = logging.getLogger(__name__)

LOG: Final = "log.jsonl"


class LogDisplay:
    """Writes a training's log, which other programs can follow, also in a run that shows nothing."""

    always: Final = True

    @contextmanager
    def __call__(self, stream: TextIO | None) -> Generator[Observer, None, None]:
        """Yield an observer that writes the log; `stream` is not used."""
        del stream
        observer = RunLog()
        try:
            yield observer
        except BaseException as error:
            observer.write("ended", error=f"{type(error).__name__}: {error}"[:2000])
            raise
        finally:
            observer.close()


run_log: Final = LogDisplay()


class RunLog:
    """Appends every event; an error of the file is logged once, and the run continues.

    The events are ``started`` (with process and host), ``stage``, ``step``, ``evaluation``, ``finished``
    and ``ended`` (with the error). A resumed run repeats steps: the last line of a step counts.
    """

    def __init__(self) -> None:
        self._file = -1

    def started(self, config: Any) -> None:
        path = Path(config.directory) / config.name / LOG
        try:
            make_private_directory(path.parent)
            self._file = private_opener(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a process that was killed left part of a line
        except OSError as error:
            _log.warning("The log %s of the run is not written: %s", path, error)
            return
        self.write("started", pid=os.getpid(), host=socket.gethostname(), steps=config.train.steps)

    def stage(self, doing: str) -> None:
        self.write("stage", doing=doing)

    def step(self, report: StepReport) -> None:
        self.write("step", report=report)

    def evaluation(self, evaluation: Evaluation) -> None:
        self.write("evaluation", report=evaluation)

    def finished(self, report: Report) -> None:
        self.write("finished", wall_s=report.wall_s)
        self.close()

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; nothing if the file is not open, as in an evaluation alone."""
        if self._file < 0:
            return
        left = json_bytes({"event": event, "at": wall(), **fields}) + b"\n"
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            _log.warning("The log of the run ends here: %s", error)
            self.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
