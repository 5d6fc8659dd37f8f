"""Who holds a store's file open: an operating-system lock that ends with its process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from agl_core.clocks import monotonic
from agl_core.errors import StoreError

_PAUSE_S = 0.01


class FileOwnership:
    """One holder's share of ``<path>-owners``.

    Every holder has a shared lock. Whoever gets it exclusively is alone: attempts found running
    are then orphans of a crash. The kernel drops the lock when a process ends, however it ends, so
    no process id or heartbeat has to be trusted. A file of its own is needed: closing a second
    descriptor of the database would drop SQLite's own locks on it.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path.with_name(path.name + "-owners")
        self._timeout_s = timeout_s
        self._descriptor: int | None = None

    def enter(self) -> bool:
        """Become a holder; True while nobody else is, until `share` is called.

        Waits while another holder is alone and setting the file up. False where the system or the
        file system has no such locks: leases alone then tell which attempts are dead.

        Raises:
            StoreError: the other holder did not finish in time.
        """
        if sys.platform == "win32":
            return False
        import fcntl  # noqa: PLC0415  no such module on Windows

        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = monotonic() + self._timeout_s
        while True:
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                try:
                    fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                except OSError:
                    self.leave()
                    return False
                return kind == fcntl.LOCK_EX
            if monotonic() > end:
                self.leave()
                raise StoreError(
                    f"Store busy: another process has been opening {self._path} for more than "
                    f"{self._timeout_s:g} s; end it or raise store.busy_timeout_s"
                )
            time.sleep(_PAUSE_S)

    def share(self) -> None:
        """Let others enter."""
        if sys.platform == "win32" or self._descriptor is None:
            return
        import fcntl  # noqa: PLC0415  no such module on Windows

        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Stop being a holder; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
