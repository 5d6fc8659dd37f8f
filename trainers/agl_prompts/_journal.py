"""The journal of a prompt phase: one line of JSON per event."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from agl_core.files import make_private_directory, private_opener
from agl_core.text import replaced

DAMAGED: Final = "prompts_journal_damaged"
"""Cause that counts lines of a journal that cannot be read."""

EditKey = tuple[str, str, int]
"""Role, digest of the messages, and how often these messages were sent before."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded call of an editor or critic: an answer, or an error."""

    answer: str = ""
    tokens: int = 0
    error: str = ""


class Journal:
    """An append-only file of events, of which a resumed phase reads the editors' calls.

    A resumed phase repeats its events; those that the file has already are not written again. An
    interrupted process may leave a partial last line, which is removed. Failed calls at the end of
    the file are made again, as their cause may have been removed; earlier ones are replayed,
    because later events depend on them.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            OSError: the file cannot be read or written.
        """
        self.path = path
        self.damaged = 0
        """Number of lines that could not be read."""
        self.edits: dict[EditKey, JournalEntry] = {}
        self._written: Counter[bytes] = Counter()
        make_private_directory(path.parent)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; the fields are JSON values."""
        line = _line({"event": event, **fields})
        if self._written[line]:
            self._written[line] -= 1
            return
        left = line
        while left:
            left = left[os.write(self._file, left) :]

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        with open(self.path, "rb", opener=private_opener) as stream:
            content = stream.read()
        lines, length = _lines(content)
        if length < len(content):
            os.truncate(self._file, length)
        failed: list[EditKey] = []
        for line in lines:
            event = _event(line)
            if event is None:
                self.damaged += 1
                continue
            self._written[line] += 1
            if event["event"] == "edit":
                self._remember(event, failed)
        for key in failed:
            del self.edits[key]

    def _remember(self, event: dict[str, Any], failed: list[EditKey]) -> None:
        key: EditKey = (event["role"], event["messages_sha256"], event["n"])
        error: str = event.get("error", "")
        self.edits[key] = JournalEntry(
            answer=event.get("answer", ""), tokens=event.get("tokens", 0), error=error
        )
        if key in failed:
            failed.remove(key)
        if error:
            failed.append(key)
        else:
            failed.clear()


def read_events(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a journal and the number of lines that cannot be read.

    The journal may be written at the same time: a partial last line is left out.

    Raises:
        OSError: the file cannot be read.
    """
    lines, _ = _lines(path.read_bytes())
    events = [_event(line) for line in lines]
    return [event for event in events if event is not None], events.count(None)


def _lines(content: bytes) -> tuple[list[bytes], int]:
    """Return the complete lines and their length."""
    whole = content[: content.rfind(b"\n") + 1]
    return [line + b"\n" for line in whole.split(b"\n")[:-1]], len(whole)


def _line(event: dict[str, Any]) -> bytes:
    # ASCII: any text, also one with lone surrogates, is written and compared without loss.
    return json.dumps(event, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    return replaced(str(value))


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    known = cast("dict[str, Any]", event)
    kind = known.get("event")
    needed = ("role", "messages_sha256", "n") if kind == "edit" else ()
    whole = isinstance(kind, str) and all(name in known for name in needed)
    return known if whole else None
