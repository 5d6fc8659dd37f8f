"""Worker processes under one supervisor: started, replaced when they end, ended together."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from agl_core.errors import ConfigError
from agl_core.runner.worker_channel import HOPELESS, RECYCLE, STOP, Tally, WorkerChannel
from agl_core.types import Losses

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
    """A worker that lived for this long counts as sound: the pauses begin anew."""


@dataclass(slots=True)
class FleetRecord:
    """What became of the workers."""

    ended: int = 0
    """Attempts."""
    died: int = 0
    """Workers that ended without being told to, and were replaced."""
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
        """Block until the process has ended; keep what it told, return its status."""
        ends: list[Any] = [self._tallies, self.process.sentinel]
        while self._tallies in (ready := wait(ends)) or self.process.sentinel not in ready:
            if not self._hear():
                ends.remove(self._tallies)
        self.process.join()
        self._orders.close()
        self._tallies.close()
        return self.process.exitcode or 0

    def _hear(self) -> bool:
        """Keep what it tells; False when there is nothing more to come."""
        try:
            self.tally = self._tallies.recv()
        except (EOFError, OSError):
            return False
        return True

    def stop(self) -> None:
        """Ask it to end; asked again, it ends at once."""
        with suppress(OSError):
            self._orders.send(STOP)
