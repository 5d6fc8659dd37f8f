"""Worker processes under one supervisor: started, replaced when they end, ended together."""

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
    """Losses by cause; the trainer gets those that an attempt could carry to the store."""


class WorkerChannel:
    """The worker's ends of two pipes; it can be pickled, to be handed to a spawned process.

    When the supervisor says so or dies, or on SIGTERM, the worker is asked to end. Whatever it
    does then, it is gone `stop_s` later, or at once at the supervisor's second request.
    """

    def __init__(self, orders: Connection, tally: Connection, *, stop_s: float) -> None:
        """Take the worker's ends.

        Args:
            orders: Reading end; only the supervisor may hold the other one.
            tally: Writing end.
            stop_s: Time to end in once asked.
        """
        self._orders = orders
        self._tally = tally
        self._stop_s = stop_s
        self._unasked = [True]

    def report(self, tally: Tally) -> None:
        """Send to the supervisor; nothing is sent to one that has died."""
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


_log = logging.getLogger(__name__)

_SPAWN: Final = multiprocessing.get_context("spawn")
"""On every system alike: a fork would copy threads' locks and open connections."""

Work = Callable[..., None]
"""Runs a worker to its end, given its channel and further arguments; it exits the process itself
where the status matters. Pickled by name, so it must be a function of a module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How many workers, and how patient with them."""

    processes: int
    stop_s: float = 7.0
    """Time that workers have to end when the fleet ends; then they are killed."""
    first_pause_s: float = 0.5
    """Before a worker that died is replaced; doubled each time it dies again."""
    longest_pause_s: float = 30.0
    steady_s: float = 60.0
    """A worker that lived for this long counts as healthy: the pauses start again at the shortest."""


@dataclass(slots=True)
class FleetRecord:
    """What became of the workers."""

    ended: int = 0
    """Attempts."""
    died: int = 0
    """Workers that ended without a request, and were replaced."""
    recycled: int = 0
    """Workers that asked to be replaced."""
    killed: int = 0
    """Workers that did not end in time."""
    losses: Losses = field(default_factory=Losses)


class Fleet:
    """Keeps a number of worker processes at work."""

    def __init__(self, work: Work, arguments: tuple[Any, ...], options: FleetOptions) -> None:
        """Describe the workers.

        Args:
            work: What each runs.
            arguments: Handed to it after its channel; pickled.
            options: How many.
        """
        self._work = work
        self._arguments = arguments
        self._options = options
        self._members: dict[int, _Member] = {}
        self._ending = False
        self.record = FleetRecord()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run, by place."""
        members = (self._members[place] for place in sorted(self._members))
        return [pid for member in members if (pid := member.process.pid) is not None]

    async def run(self) -> None:
        """Keep the workers running until cancelled, then end them; cancelled again, kill them.

        Raises:
            ConfigError: a worker cannot work, and neither could another in its place.
        """
        # Not the loop's own executor: that one has a few threads only, and every worker needs one.
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
        """Keep one worker in this place."""
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
    """Raise what ended one of them; what ended others in the same moment is logged."""
    failures = [error for place in places if (error := place.exception()) is not None]
    for error in failures[1:]:
        _log.error("%s", error)
    if failures:
        raise failures[0]


class _Member:
    """One worker process and the supervisor's ends of its pipes."""

    def __init__(self, work: Work, arguments: tuple[Any, ...], stop_s: float) -> None:
        self.tally = Tally(lost={})
        orders, self._orders = _SPAWN.Pipe(duplex=False)
        self._tallies, tally = _SPAWN.Pipe(duplex=False)
        channel = WorkerChannel(orders, tally, stop_s=stop_s)
        self.process: BaseProcess = _SPAWN.Process(target=work, args=(channel, *arguments))
        self.process.start()
        orders.close()
        tally.close()

    def watch(self) -> int:
        """Block until the process has ended; keep its last counts, return its status."""
        ends: list[Any] = [self._tallies, self.process.sentinel]
        while self._tallies in (ready := wait(ends)) or self.process.sentinel not in ready:
            if not self._receive():
                ends.remove(self._tallies)
        self.process.join()
        self._orders.close()
        self._tallies.close()
        return self.process.exitcode or 0

    def _receive(self) -> bool:
        """Keep its counts; False at the end of its output."""
        try:
            self.tally = self._tallies.recv()
        except (EOFError, OSError):
            return False
        return True

    def stop(self) -> None:
        """Ask it to end; asked again, it ends at once."""
        with suppress(OSError):
            self._orders.send(STOP)
