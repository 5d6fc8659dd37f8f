"""Event files, written immediately in the caller's thread, so that a full disk raises there."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# protobuf creates its classes on import.
from tensorboardX.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboardX.proto.summary_pb2 import (
    Summary,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import text as text_summary

from agl_core.files import make_private_directory, touch_private

_VERSION: Final = "brain.Event:2"
"""TensorBoard needs this version or later to drop later steps where a session starts."""


class EventFiles:
    """A writer that appends to a folder of event files.

    tensorboardX's own writer uses a thread that ends without an error if the disk is full.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        """Start a file.

        Args:
            folder: Folder of the files; created if missing.
            first_step: Values of this and later steps in older files are ignored.
        """
        make_private_directory(folder)
        self._folder = folder
        self._writer: Any = None
        start = SessionLog(status=SessionLog.START)
        self._write(Event(step=first_step, session_log=start))

    def numbers(self, numbers: dict[str, float], step: int) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def texts(self, texts: dict[str, str], step: int) -> None:
        values = [value for tag, text in texts.items() for value in text_summary(tag, text).value]
        self._write(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        try:
            if self._writer is None:
                self._writer = self._begun()
            self._writer.write(event.SerializeToString())
            self._writer.flush()
        except OSError:
            # The file may end with half a record, and readers stop there: the next event starts a
            # new file.
            with suppress(OSError):
                self.close()
            self._writer = None
            raise

    def _begun(self) -> Any:
        """Open a new file; TensorBoard reads the files of a folder in the order of their names."""
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        touch_private(self._folder / name)
        writer: Any = RecordWriter(str(self._folder / name))
        writer.write(Event(wall_time=now, file_version=_VERSION).SerializeToString())
        return writer
