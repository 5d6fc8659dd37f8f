"""What spawned workers do in the tests of the fleet: functions that a fresh process can import."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

from agl_remote._runner_fleet import HOPELESS, RECYCLE


def waits(channel, folder):
    """Ends when asked to."""
    asked = threading.Event()
    channel.watch(asked.set)
    _began(folder)
    asked.wait()
    channel.report(2, {"late_span": 1})


def dies_once(channel, folder):
    """The first of all dies of a signal after it has done something; the others wait."""
    if not list(Path(folder).iterdir()):
        _began(folder)
        channel.report(5, {"dropped_span": 3})
        os.kill(os.getpid(), 9)
    waits(channel, folder)


def recycles_once(channel, folder):
    if not list(Path(folder).iterdir()):
        _began(folder)
        sys.exit(RECYCLE)
    waits(channel, folder)


def hopeless(channel, folder):
    sys.exit(HOPELESS)


def will_not_end(channel, folder):
    channel.watch(lambda: None)
    _began(folder)
    threading.Event().wait()


def deaf(channel, folder):
    """Not even its channel ends it."""
    _began(folder)
    threading.Event().wait()


def _began(folder):
    """A file per life, written whole before its name appears."""
    aside = Path(folder).with_name(f"{os.getpid()}.aside")
    aside.write_text(f"{socket.gethostname()} {time.time()}", encoding="utf-8")
    aside.rename(Path(folder) / str(os.getpid()))
