"""Worker processes of one supervisor, which replaces those that end and ends all together."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Final

from agl_core.errors import ConfigError
from agl_core.types import Losses

RECYCLE: Final = 75
"""Exit status of a worker that must be replaced because it has threads that cannot be stopped."""
HOPELESS: Final = 2
"""Exit status of a worker whose replacement would fail in the same way."""
STOP: Final = "stop"

_FORCED: Final = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The counts of a worker so far."""

    ended: int = 0
    """Number of ended attempts."""
    lost: Mapping[str, int]
    """Losses by cause; the trainer gets those that were stored with an attempt."""


class WorkerChannel:
    """The worker's ends of two pipes; picklable, as an argument of a spawned process.

    The worker is asked to end on a request or the death of the supervisor, or on SIGTERM. Its
    process exits at the latest `stop_s` later, or immediately on the supervisor's second request.
    """

    def __init__(self, requests: Connection, tally: Connection, *, stop_s: float) -> None:
        """Set the worker's ends.

        Args:
            requests: Reading end; only the supervisor may have the other end open.
            tally: Writing end.
            stop_s: Longest time to end after a request.
        """
        self._requests = requests
        self._tally = tally
        self._stop_s = stop_s
        self._unasked = [True]

    def report(self, ended: int, lost: Mapping[str, int]) -> None:
        """Send counts to the supervisor; do nothing if it has died."""
        with suppress(OSError):
            self._tally.send(Tally(ended=ended, lost=lost))

    def watch(self, ask: Callable[[], None]) -> None:
        """Call `ask`, once and from any thread, when the worker must end. Main thread only.

        SIGINT is ignored: a terminal sends Ctrl+C to all its processes, and the supervisor decides.
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
        """Wait for a request; return False if the supervisor is dead."""
        try:
            self._requests.recv()
        except (EOFError, OSError):
            return False
        return True

    def _ask(self, ask: Callable[[], None]) -> None:
        try:
            self._unasked.pop()  # not a lock: the thread that a signal interrupts may hold it
        except IndexError:
            return
        self.leave(_FORCED)
        ask()

    def leave(self, status: int) -> None:
        """Exit with `status` after `stop_s` if the process is still running then."""
        _in_background(_exit_later, status, self._stop_s)


def _exit_later(status: int, wait_s: float) -> None:
    time.sleep(wait_s)
    os._exit(status)


def _in_background(call: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=call, args=arguments, name="agl-worker-channel", daemon=True).start()


_log = logging.getLogger(__name__)

_SPAWN: Final = multiprocessing.get_context("spawn")
"""On every system: a fork would copy threads' locks and open connections."""

Work = Callable[..., None]
"""Runs a worker, given its channel and further arguments; it calls exit to set a status. It is
pickled by name, so it must be a function of a module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The number of workers and their time limits."""

    processes: int
    stop_s: float = 7.0
    """Time for workers to end when the fleet ends; then they are killed."""
    first_pause_s: float = 0.5
    """Pause before a worker that died is replaced; doubled each time it dies again."""
    longest_pause_s: float = 30.0
    steady_s: float = 60.0
    """After a worker that ran this long, the pause is `first_pause_s` again."""


@dataclass(slots=True)
class FleetRecord:
    """The counts of a fleet's workers."""

    ended: int = 0
    """Number of ended attempts."""
    died: int = 0
    """Workers that ended without a request and were replaced."""
    recycled: int = 0
    """Workers that requested to be replaced."""
    killed: int = 0
    """Workers that did not end in time."""
    losses: Losses = field(default_factory=Losses)


class Fleet:
    """Keeps a number of worker processes running."""

    def __init__(self, work: Work, arguments: tuple[Any, ...], options: FleetOptions) -> None:
        """Set the workers' function and options.

        Args:
            work: The function of each worker.
            arguments: Further arguments of `work`, after its channel; pickled.
            options: Number of workers and time limits.
        """
        self._work = work
        self._arguments = arguments
        self._options = options
        self._members: dict[int, _Member] = {}
        self._ending = False
        self.record = FleetRecord()

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers, in order of their number."""
        members = (self._members[place] for place in sorted(self._members))
        return [pid for member in members if (pid := member.process.pid) is not None]

    async def run(self) -> None:
        """Keep the workers running until cancelled, then end them; on a second one, kill them.

        Raises:
            ConfigError: a worker cannot work, and its replacement would fail too.
        """
        # Not the loop's default executor: it has few threads, and every worker needs one.
        with ThreadPoolExecutor(self._options.processes, "agl-fleet") as threads:
            places = [
                asyncio.create_task(self._fill(place, threads))
                for place in range(self._options.processes)
            ]
            try:
                done, _ = await asyncio.wait(places, return_when=asyncio.FIRST_EXCEPTION)
                _raise_one(done)
            finally:
                try:
                    await self._end(places)
                finally:
                    for member in self._members.values():
                        member.process.kill()

    async def _fill(self, place: int, threads: ThreadPoolExecutor) -> None:
        """Keep the worker with this number running."""
        loop = asyncio.get_running_loop()
        options = self._options
        pause_s = options.first_pause_s
        while not self._ending:
            began = loop.time()
            member = self._members[place] = _Member(self._work, self._arguments, options.stop_s)
            status = await loop.run_in_executor(threads, member.watch)
            self._settle(place)
            if self._ending:
                return
            if status == RECYCLE:
                self.record.recycled += 1
                _log.warning("Worker %d is replaced: user code in it cannot be stopped", place + 1)
                continue
            if status == HOPELESS:
                raise ConfigError(f"Worker {place + 1} cannot work: see its message above")
            self.record.died += 1
            if loop.time() - began >= options.steady_s:
                pause_s = options.first_pause_s
            _log.warning(
                "Worker %d ended with status %d: starting another in %g s",
                place + 1,
                status,
                pause_s,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, options.longest_pause_s)

    def _settle(self, place: int) -> None:
        tally = self._members.pop(place).tally
        self.record.ended += tally.ended
        self.record.losses.merge(Losses(counts=dict(tally.lost)))

    async def _end(self, places: list[asyncio.Task[None]]) -> None:
        self._ending = True
        for place, task in enumerate(places):
            if place in self._members:
                self._members[place].stop()
            else:
                task.cancel()
        _, late = await asyncio.wait(places, timeout=self._options.stop_s + 1)
        for member in self._members.values():
            self.record.killed += 1
            member.process.kill()
        if late:
            await asyncio.wait(late)


def _raise_one(places: Collection[asyncio.Task[None]]) -> None:
    """Raise the first exception; log the others."""
    failures = [error for place in places if (error := place.exception()) is not None]
    for error in failures[1:]:
        _log.error("%s", error)
    if failures:
        raise failures[0]


class _Member:
    """One worker process and the supervisor's ends of its pipes."""

    def __init__(self, work: Work, arguments: tuple[Any, ...], stop_s: float) -> None:
        self.tally = Tally(lost={})
        requests, self._requests = _SPAWN.Pipe(duplex=False)
        self._tallies, tally = _SPAWN.Pipe(duplex=False)
        channel = WorkerChannel(requests, tally, stop_s=stop_s)
        self.process: BaseProcess = _SPAWN.Process(target=work, args=(channel, *arguments))
        self.process.start()
        requests.close()
        tally.close()

    def watch(self) -> int:
        """Block until the process has ended; store its last counts, return its exit status."""
        ends: list[Any] = [self._tallies, self.process.sentinel]
        while self._tallies in (ready := wait(ends)) or self.process.sentinel not in ready:
            if not self._receive():
                ends.remove(self._tallies)
        self.process.join()
        self._requests.close()
        self._tallies.close()
        return self.process.exitcode or 0

    def _receive(self) -> bool:
        """Store its counts; return False at the end of its output."""
        try:
            self.tally = self._tallies.recv()
        except (EOFError, OSError):
            return False
        return True

    def stop(self) -> None:
        """Request its end; a second request ends it immediately."""
        with suppress(OSError):
            self._requests.send(STOP)
