"""What services of a run state of themselves, in files of the run's directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agl_core.clocks import monotonic, wall
from agl_core.files import write_private
from agl_core.text import json_bytes, replaced_json

_log = logging.getLogger(__name__)

_FOLDER: Final = "services"
_LARGEST: Final = 1_000_000
_MOST: Final = 50

Cell = str | int | float


class ServiceState(msgspec.Struct, kw_only=True):
    """The state of one service: a few facts, and rows of a table."""

    title: str
    facts: dict[str, Cell] = {}
    columns: list[str] = []
    rows: list[list[Cell]] = []
    at: float = 0.0
    """Unix seconds when it was written."""
    pid: int = 0
    """The process that has it."""


class ServiceLog:
    """Keeps the newest state of a service in the run's directory, for the dashboard."""

    def __init__(self, directory: Path, name: str, *, interval_s: float = 5.0) -> None:
        """Name the service.

        Args:
            directory: The run's; nothing is written while it does not exist.
            name: Part of the file's name.
            interval_s: Shortest time between two writes.
        """
        self._file = directory / _FOLDER / f"{name}.json"
        self._interval_s = interval_s
        self._due = 0.0

    def write(self, make: Callable[[], ServiceState], *, last: bool = False) -> None:
        """Write the state if it is time to, or if it is the `last`; errors are logged."""
        if monotonic() < self._due and not last:
            return
        self._due = monotonic() + self._interval_s
        try:
            if self._file.parent.parent.is_dir():
                self._file.parent.mkdir(exist_ok=True)
                state = msgspec.structs.replace(make(), at=wall(), pid=os.getpid())
                write_private(self._file, json_bytes(state))
        except OSError as error:
            _log.debug("Could not write %s: %s", self._file, error)


def read_services(directory: Path) -> list[ServiceState]:
    """Return what services of a run state, by title; unreadable files are left out."""
    found: list[ServiceState] = []
    for file in sorted((directory / _FOLDER).glob("*.json"))[:_MOST]:
        try:
            if file.stat().st_size <= _LARGEST:
                found.append(
                    msgspec.json.decode(replaced_json(file.read_bytes()), type=ServiceState)
                )
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return sorted(found, key=lambda each: each.title)
