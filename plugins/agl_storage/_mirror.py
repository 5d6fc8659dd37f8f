"""The thread of a run that uploads what its directory holds."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agl_core.clocks import new_id
from agl_core.config import RunConfig
from agl_core.errors import AglError, TrainingError
from agl_storage._local import (
    CHECKPOINTS,
    SNAPSHOT,
    checkpoint_mark,
    checkpoint_unit,
    checkpoints,
    run_unit,
)
from agl_storage._manifest import StorageError, Unit
from agl_storage._remote import Remote
from agl_storage._resume import Resumption

_log = logging.getLogger(__name__)

OWNER: Final = "owner.json"
_LOOK_S: Final = 2.0
"""Pause between two looks into the run's directory."""
_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 60.0
TRIES: Final = 5
"""Failed uploads in a row after which a run with `required` ends."""


class SupersededError(AglError):
    """Another trainer has continued the run on another machine."""


class StorageOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer that writes into a run's folder; each one that starts takes the last one's place."""

    id: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredRun:
    """What is mirrored, and where."""

    config: RunConfig
    shown: bytes
    """The configuration without secrets."""
    directory: Path
    remote: Callable[[], Remote]
    prune: bool


class Mirror:
    """Uploads a run's files in a thread of its own.

    One upload is under way at a time, the newest checkpoint first; one that is deleted before its
    turn is left out, so a slow storage gets fewer checkpoints and never delays the run. Failures
    are counted as ``storage_failures`` and tried again after 0.5 to 60 s.
    """

    def __init__(self, run: MirroredRun) -> None:
        self._run = run
        self._owner = StorageOwner(id=new_id("trainer"), host=socket.gethostname())
        self._changed = threading.Condition()
        self._looks = self._looked = 0
        """Number of the last look that was asked for, and of the last one that found all stored."""
        self._until: float | None = None
        self._ended = False
        self._counts: Counter[str] = Counter()
        self._marks: dict[str, str] = {}
        """What is stored: mark by place."""
        self._seen: dict[Path, tuple[int, str]] = {}
        """Time of change and mark of local checkpoints."""
        self._waiting: list[str] = []
        self._warned = ""
        self.connected: Future[None] = Future()
        """Done when the storage has answered and may be used."""
        self.ready: Future[None] = Future()
        """Done when the checkpoint to continue from is in the run's directory."""
        self.failed_in_row = 0
        self.last_error = ""

    def start(self) -> None:
        """Start the thread; `connected` and `ready` have its errors."""
        # As a daemon, so that a storage that hangs does not keep the process alive.
        threading.Thread(target=self._serve, name="agl-storage", daemon=True).start()

    def wake(self) -> None:
        """Look into the directory soon; never waits."""
        with self._changed:
            self._looks += 1
            self._changed.notify_all()

    def flush(self, within_s: float) -> list[str]:
        """Wait until all is stored, at most `within_s`; return what is not."""
        until = time.monotonic() + within_s
        with self._changed:
            self._looks += 1
            wanted = self._looks
            self._until = until
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._looked >= wanted or self._ended, max(0.0, until - time.monotonic())
            )
            return [] if self._looked >= wanted else list(self._waiting or ["something"])

    def close(self) -> None:
        """End the thread once the upload under way has ended, without waiting for it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def losses(self) -> dict[str, int]:
        """Return the number of failures."""
        return dict(self._counts)

    def count(self, cause: str, number: int) -> None:
        """Count losses."""
        if number:
            self._counts[cause] += number

    def _serve(self) -> None:
        try:
            remote = self._begin()
        except BaseException as error:  # noqa: BLE001 - the futures raise it
            for future in (self.connected, self.ready):
                if not future.done():
                    future.set_exception(error)
            return
        self.ready.set_result(None)
        try:
            self._mirror(remote)
        except SupersededError as error:
            self.last_error = str(error)
            _log.error("%s", error)
        except Exception as error:  # noqa: BLE001 - telemetry: it never ends the run
            self.last_error = f"{type(error).__name__}: {error}"
            _log.exception("The run is no longer mirrored")
        finally:
            shutil.rmtree(self._run.directory / SNAPSHOT, ignore_errors=True)
            self.close()

    def _begin(self) -> Remote:
        """Check the storage, become its owner and fetch what the run needs."""
        run = self._run
        remote = run.remote()
        resumption = Resumption(remote, run.directory, run.config)
        resumption.check()
        data = msgspec.json.encode(self._owner)
        remote.write(OWNER, data)
        if remote.read(OWNER) != data:
            raise StorageError(f"Storage {remote.url} does not give back what was just written")
        self.connected.set_result(None)
        shutil.rmtree(run.directory / SNAPSHOT, ignore_errors=True)
        remote.clear_uploads()
        for name, manifest in resumption.fetch().items():
            self._marks[f"{CHECKPOINTS}/{name}"] = manifest.facts.identity
        return remote

    def _mirror(self, remote: Remote) -> None:
        pause_s = _FIRST_RETRY_S
        while not self._ended:
            with self._changed:
                look = self._looks
            try:
                stored_all = self._store_next(remote)
            except StorageError as error:
                self._failed(remote, error)
                self._wait(look, pause_s, despite_wake=True)
                pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
                continue
            pause_s = _FIRST_RETRY_S
            if stored_all:
                with self._changed:
                    self._looked = look
                    self._changed.notify_all()
                self._wait(look, _LOOK_S)

    def _wait(self, look: int, seconds: float, *, despite_wake: bool = False) -> None:
        """Wait for a call of `wake`, or that long; in a flush not longer than its rest."""
        with self._changed:
            if self._until is not None and despite_wake:
                seconds = min(seconds, max(0.05, self._until - time.monotonic()), 2.0)
            self._changed.wait_for(
                lambda: self._ended or (self._looks > look and not despite_wake), seconds
            )

    def _store_next(self, remote: Remote) -> bool:
        """Store one thing that is not; return whether there was none."""
        own = run_unit(self._run.directory, self._run.shown)
        found = {path: self._mark(path) for path in checkpoints(self._run.directory)}
        waiting = [
            path
            for path, mark in found.items()
            if mark and self._marks.get(f"{CHECKPOINTS}/{path.name}") != mark
        ]
        changed = self._marks.get("") != own.mark
        names = [path.name for path in waiting]
        self._waiting = names + (["the run's own files"] if changed else [])
        if changed:
            self._put(remote, own)
            return False
        if not waiting:
            return True
        try:
            snapshots = self._run.directory / SNAPSHOT
            unit = checkpoint_unit(waiting[0], snapshots / waiting[0].name, self._run.config)
        except (OSError, AglError) as error:  # it was deleted, as newer ones were written
            _log.debug("Checkpoint %s is not mirrored: %s", waiting[0], error)
            return False
        self._put(remote, unit)
        shutil.rmtree(snapshots, ignore_errors=True)  # before `flush` returns
        self._prune(remote)
        return False

    def _mark(self, checkpoint: Path) -> str:
        """Return a local checkpoint's mark; empty if it is gone or damaged."""
        try:
            changed = checkpoint.stat().st_mtime_ns
            if self._seen.get(checkpoint, (0, ""))[0] != changed:
                self._seen[checkpoint] = (changed, checkpoint_mark(checkpoint))
        except (OSError, TrainingError):
            return ""
        return self._seen[checkpoint][1]

    def _put(self, remote: Remote, unit: Unit) -> None:
        def still_owner() -> None:
            data = remote.read(OWNER)
            if data != msgspec.json.encode(self._owner):
                raise SupersededError(
                    f"Another trainer has continued run {self._run.config.name!r} in "
                    f"{remote.url} ({(data or b'').decode(errors='replace')}): this one is no "
                    f"longer mirrored"
                )

        still_owner()
        remote.put(unit, may_end=still_owner)
        self._marks[unit.place] = unit.mark
        self.failed_in_row = 0
        if self._warned:
            _log.warning("The storage takes files again")
            self._warned = ""

    def _prune(self, remote: Remote) -> None:
        """Remove the checkpoints that the run does not keep either."""
        if not self._run.prune:
            return
        start = f"{CHECKPOINTS}/"
        local = {path.name for path in checkpoints(self._run.directory)}
        names = sorted(place.removeprefix(start) for place in self._marks if place)
        for name in names[: -self._run.config.train.keep_checkpoints]:
            if name not in local:
                remote.below(f"{start}{name}").remove()
                del self._marks[f"{start}{name}"]

    def _failed(self, remote: Remote, error: StorageError) -> None:
        self._counts["storage_failures"] += 1
        self.failed_in_row += 1
        self.last_error = str(error)
        if not self._warned:
            self._warned = str(error)
            _log.warning("%s: it is tried again, and the run continues", error)
        try:
            remote.clear_uploads()
        except StorageError:
            _log.debug("Uploads that failed are cleared later", exc_info=True)
