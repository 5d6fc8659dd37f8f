"""A worker process's tie to its supervisor: orders come in, counts go out, its end is noticed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Final

RECYCLE: Final = 75
"""Exit status of a worker that asks to be replaced: it holds threads that cannot be stopped."""
HOPELESS: Final = 2
"""Exit status of a worker whose replacement would fail just the same."""
STOP: Final = "stop"

_FORCED: Final = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a worker did so far."""

    ended: int = 0
    """Attempts."""
    lost: Mapping[str, int]
    """Losses by cause; the trainer hears of those that an attempt could carry to the store."""


class WorkerChannel:
    """The worker's ends of two pipes; it can be pickled, to be handed to a spawned process.

    When the supervisor says so or dies, or on SIGTERM, the worker is asked to end. Whatever it
    does then, it is gone `stop_s` later, or at once when the supervisor tells it again.
    """

    def __init__(self, orders: Connection, tally: Connection, *, stop_s: float) -> None:
        """Take the worker's ends.

        Args:
            orders: Reading end; nobody but the supervisor may hold the other one.
            tally: Writing end.
            stop_s: Time to end in once asked.
        """
        self._orders = orders
        self._tally = tally
        self._stop_s = stop_s
        self._unasked = [True]

    def report(self, tally: Tally) -> None:
        """Tell the supervisor; one that has died is told nothing."""
        with suppress(OSError):
            self._tally.send(tally)

    def watch(self, ask: Callable[[], None]) -> None:
        """Call `ask`, once and from any thread, when the worker is to end. Main thread only.

        A terminal sends Ctrl+C to every process in it: what follows is the supervisor's to say.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, partial(self._terminated, ask))
        _in_background(self._obey, ask)

    def _terminated(self, ask: Callable[[], None], signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._ask(ask)

    def _obey(self, ask: Callable[[], None]) -> None:
        supervised = self._ordered()
        self._ask(ask)
        if supervised:
            self._ordered()
            os._exit(_FORCED)

    def _ordered(self) -> bool:
        """Wait for an order; False when the supervisor is dead."""
        try:
            self._orders.recv()
        except (EOFError, OSError):
            return False
        return True

    def _ask(self, ask: Callable[[], None]) -> None:
        try:
            self._unasked.pop()  # a lock could be held by the very thread that a signal interrupts
        except IndexError:
            return
        self.leave(_FORCED)
        ask()

    def leave(self, status: int) -> None:
        """End the process with `status` in `stop_s`, should anything in it hang until then."""
        _in_background(_exit_later, status, self._stop_s)


def _exit_later(status: int, wait_s: float) -> None:
    time.sleep(wait_s)
    os._exit(status)


def _in_background(call: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=call, args=arguments, name="agl-worker-channel", daemon=True).start()
