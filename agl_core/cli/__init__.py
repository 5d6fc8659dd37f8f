"""The ``agl`` program: one file per command, imported when it is called."""

from __future__ import annotations

import _thread
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from agl_core import waits
from agl_core._interrupts import INTERRUPTED, Interrupts, leave


def main() -> None:
    """Run ``agl`` with the arguments of the process.

    SIGINT and SIGTERM end every command alike, see `Interrupts`.
    """
    interrupts = Interrupts(leaves=True)
    with interrupts.installed():
        try:
            from agl_core.cli.group import cli  # noqa: PLC0415

            with _users_frames_first():
                cli.main(prog_name="agl")
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except SystemExit as end:
            if any(_holds_up(thread) for thread in threading.enumerate()):
                patience_s = waits.INTERRUPTED_THREADS_S if interrupts.count else waits.THREADS_S
                _thread.start_new_thread(_leave_in_time, (end.code, patience_s))
            raise


@contextmanager
def _users_frames_first() -> Generator[None, None, None]:
    """Print what the user's code raised from its own first frame on; all of it with ``--debug``."""
    try:
        yield
    except Exception as error:
        from agl_core.tracing import users_traceback  # noqa: PLC0415

        frames = users_traceback(error.__traceback__)
        if frames is None or "--debug" in sys.argv:
            raise
        if isinstance(error, ImportError):
            sys.exit(_not_imported(error, frames))
        traceback.print_exception(type(error), error, frames)
        sys.exit(1)


def _not_imported(error: ImportError, frames: TracebackType) -> str:
    """Return the message for a package that is missing or has another version."""
    first, *inner = traceback.extract_tb(frames)
    by = next((each for each in reversed(inner) if "importlib" not in each.filename), first)
    return (
        f"Error: {by.filename}, line {by.lineno}: {' '.join(str(error).split())}. Correct the "
        f"import, or install what it needs for {sys.executable} (--debug shows the traceback)"
    )


def _holds_up(thread: threading.Thread) -> bool:
    """Whether Python waits for the thread before it ends."""
    return thread is not threading.main_thread() and not thread.daemon


def _leave_in_time(code: object, patience_s: float) -> None:
    time.sleep(patience_s)
    leave(code if isinstance(code, int) else int(code is not None))
