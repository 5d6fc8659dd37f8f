"""What spawned workers do in the tests of the fleet: functions that a fresh process can import."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

from agl_core.runner.lifeline import HOPELESS, RECYCLE, Tally


def waits(lifeline, folder):
    """Ends when asked to."""
    asked = threading.Event()
    lifeline.watch(asked.set)
    _began(folder)
    asked.wait()
    lifeline.report(Tally(ended=2, lost={"late_span": 1}))


def dies_once(lifeline, folder):
    """The first of all dies of a signal after it has done something; the others wait."""
    if not list(Path(folder).iterdir()):
        _began(folder)
        lifeline.report(Tally(ended=5, lost={"dropped_span": 3}))
        os.kill(os.getpid(), 9)
    waits(lifeline, folder)


def recycles_once(lifeline, folder):
    if not list(Path(folder).iterdir()):
        _began(folder)
        sys.exit(RECYCLE)
    waits(lifeline, folder)


def hopeless(lifeline, folder):
    sys.exit(HOPELESS)


def will_not_end(lifeline, folder):
    lifeline.watch(lambda: None)
    _began(folder)
    threading.Event().wait()


def deaf(lifeline, folder):
    """Not even its lifeline ends it."""
    _began(folder)
    threading.Event().wait()


def _began(folder):
    """A file per life, written whole before its name appears."""
    aside = Path(folder).with_name(f"{os.getpid()}.aside")
    aside.write_text(f"{socket.gethostname()} {time.time()}", encoding="utf-8")
    aside.rename(Path(folder) / str(os.getpid()))
