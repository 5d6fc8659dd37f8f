"""The thread of a run that writes events to its outbox and sends them to the bus."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import msgspec
from agl_reading import ServiceLog, ServiceState

from agl_core.clocks import steady_loop, wall_ns
from agl_core.errors import AglError, ConfigError, StoreError
from agl_core.text import escaped, json_bytes
from agl_events._bus import Bus, BusError, Message, hidden
from agl_events._event import BusEvent, encode
from agl_events._outbox import EventOutbox, Stored, host, open_free

_log = logging.getLogger(__name__)

WINDOW: Final = 64
"""Events that are sent before their confirmations are waited for: a bus that confirms each event
takes several times as long when they are sent one at a time."""
_IN_MEMORY: Final = 20_000
"""Events between the run and the outbox at most."""
_WRITE_EVERY_S: Final = 0.05
"""Pause between two writes, in which events gather: one transaction for each costs ten times more."""
_SETTLE_S: Final = 0.2
"""Time without events after which sent ones are deleted from the outbox on their own."""
_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 30.0
_random: Final = SystemRandom()

MakeEvent = Callable[[str, float, bytes, dict[str, Any]], BusEvent]
"""Makes an event of its channel, time in Unix seconds, facts as JSON, and metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """How much is kept of a run's events."""

    events: int
    """Events in the outbox."""
    size: int
    """Bytes of these events."""
    event_size: int
    """Bytes of one event."""
    call_s: float
    """Longest wait for a connection or confirmation."""


class EventSender:
    """Takes events without waiting, and delivers each at least once.

    `put` may be called from any thread; the events are written to the outbox by a thread of its own,
    which also sends them. While the bus is down, they wait in the outbox, and the bus is tried again
    after 0.5 to 30 s. What cannot be kept is counted by cause: ``events_dropped`` (limits exceeded,
    or the disk is full), ``events_cut``, ``events_unroutable``, ``events_refused``.
    """

    def __init__(
        self,
        file: Path,
        make_bus: Callable[[], Bus],
        make_event: MakeEvent,
        limits: OutboxLimits,
        *,
        of_runner: bool = False,
    ) -> None:
        """Configure the sender without starting it.

        Args:
            file: The outbox; of runners, the directory of their outboxes.
            make_bus: Makes the bus, in the thread.
            make_event: Makes the events, in the thread.
            limits: How much is kept.
            of_runner: Use the first outbox of this machine's runners that is free.
        """
        self._file, self._make_bus, self._limits = file, make_bus, limits
        self._make_event = make_event
        self._of_runner = of_runner
        self.process = ""
        """``runner/HOST/NUMBER`` once a runner's outbox is open; no two processes at a time have
        the same."""
        self._lock = threading.Lock()
        self._queue: deque[bytes] = deque()
        """Number, Unix nanoseconds, channel and facts of each event. Bytes, as records that
        stay for some time would have Python search for garbage more often."""
        self._counts: Counter[str] = Counter()
        self._sequence, self._outbox_id = 0, ""
        self._closed = self._signalled = self._all_written = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: Future[None] = Future()
        self._ended: Future[int] = Future()
        self._warned: set[str] = set()
        self._flushed_by = _Moment()

    def open(self, *, connect_s: float) -> None:
        """Start the thread and open the outbox; wait at most `connect_s` for the bus.

        A bus that is down is logged and tried again; the run may start.

        Raises:
            ConfigError: the outbox cannot be used, or the bus refuses user, password or name.
        """
        thread = threading.Thread(target=self._run, args=(connect_s,), name="agl-events")
        thread.daemon = True  # a bus that hangs does not keep the process alive
        thread.start()
        self._opened.result()

    def put(self, channel: str, facts: Any) -> None:
        """Take an event, or count it as dropped; never waits and never raises.

        Args:
            channel: What happened.
            facts: A record or mapping that has a JSON form.
        """
        try:
            data = json_bytes(facts)
        except (TypeError, ValueError, RuntimeError, msgspec.MsgspecError) as error:
            self._warn("form", f"Event {channel} has no JSON form: {_named(error)}")
            data = None
        with self._lock:
            self._sequence += 1
            queue = self._queue
            if data is None or self._closed or len(queue) >= _IN_MEMORY:
                self._counts["events_dropped"] += 1
                return
            queue.append(b"%d %d %b %b" % (self._sequence, wall_ns(), channel.encode(), data))
            if self._signalled or self._loop is None:
                return
            self._signalled = True
            loop = self._loop
        with suppress(RuntimeError):  # the thread has ended since
            loop.call_soon_threadsafe(self._wake.set)

    def count(self, cause: str, number: int = 1) -> None:
        """Add to the losses."""
        if number:
            with self._lock:
                self._counts[cause] += number

    def losses(self) -> dict[str, int]:
        """Return everything that was lost so far, by cause."""
        with self._lock:
            return dict(self._counts)

    def close(self, *, within_s: float) -> int:
        """Write all events, wait for the bus to take them, and end the thread.

        A bus that is down is tried once more. The rest stays in the outbox.

        Args:
            within_s: Longest wait for the bus.

        Returns:
            The number of events that stay in the outbox.
        """
        with self._lock:
            self._closed = True
            loop = self._loop
        if loop is None:
            return 0
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, within_s)
        try:
            return self._ended.result(within_s + self._limits.call_s)
        except TimeoutError:
            return 0

    def _run(self, connect_s: float) -> None:
        try:
            with asyncio.Runner(loop_factory=steady_loop) as runner:
                runner.run(self._serve(connect_s))
        except BaseException as error:  # noqa: BLE001 - the opener gets it, or the log
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                self._warn("thread", f"Events are no longer sent: {_named(error)}")
        finally:
            with self._lock:
                self._closed = True
                left = len(self._queue)
                self._queue.clear()
            self.count("events_dropped", left)
            if not self._ended.done():
                self._ended.set_result(0)

    async def _serve(self, connect_s: float) -> None:
        outbox = self._open_outbox()
        self._wake, self._written, self._ending = asyncio.Event(), asyncio.Event(), asyncio.Event()
        try:
            with self._lock:
                self._sequence, self._outbox_id = outbox.last, outbox.id
                self._loop = asyncio.get_running_loop()
            await self._deliver(outbox, self._make_bus(), connect_s)
        finally:
            waiting = outbox.waiting
            self._states.write(partial(self._state, outbox), last=True)
            outbox.close()
        self._ended.set_result(waiting)

    def _open_outbox(self) -> EventOutbox:
        limits = self._limits
        if not self._of_runner:
            self._states = ServiceLog(self._file.parent, "events")
            return EventOutbox.open(self._file, most=limits.events, most_bytes=limits.size)
        number, outbox = open_free(self._file, most=limits.events, most_bytes=limits.size)
        self.process = f"runner/{host()}/{number}"
        self._states = ServiceLog(self._file, f"events.{host()}.{number}")
        return outbox

    async def _deliver(self, outbox: EventOutbox, bus: Bus, connect_s: float) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            connected = await self._first_connection(bus, connect_s)
            self._opened.set_result(None)
            writing = asyncio.create_task(self._write(outbox))
            sending = asyncio.create_task(self._send(outbox, bus, connected=connected))
            tasks += (writing, sending)
            await writing
            with suppress(TimeoutError):
                await asyncio.wait_for(sending, max(0.0, self._flushed_by.left()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TimeoutError, AglError, OSError):
                await asyncio.wait_for(bus.close(), 1.0)

    async def _first_connection(self, bus: Bus, connect_s: float) -> bool:
        try:
            await asyncio.wait_for(bus.open(), connect_s)
        except (BusError, TimeoutError) as error:
            self._warn("down", _waits(error))
            return False
        return True

    async def _write(self, outbox: EventOutbox) -> None:
        """Move events from memory to the outbox until the end, and what is left then."""
        while not self._ending.is_set():
            await self._wake.wait()
            self._wake.clear()
            self._write_queue(outbox)
            if not self._ending.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), _WRITE_EVERY_S)
        self._write_queue(outbox)
        self._all_written = True
        self._written.set()

    def _write_queue(self, outbox: EventOutbox) -> None:
        with self._lock:
            taken = list(self._queue)
            self._queue.clear()
            self._signalled = False
        events: list[Stored] = []
        for queued in taken:
            event = self._stored(queued)
            if event is not None:
                events.append(event)
        try:
            dropped = outbox.add(events)
        except StoreError as error:
            self._warn("disk", f"{error}. Events are dropped and counted as events_dropped")
            dropped = len(events)
        self._states.write(partial(self._state, outbox))
        if dropped:
            self.count("events_dropped", dropped)
            self._warn("dropped", "The outbox is full: events are dropped, see events_dropped")
        self._written.set()

    def _state(self, outbox: EventOutbox) -> ServiceState:
        facts: dict[str, str | int | float] = {
            "waiting": outbox.waiting,
            "written": outbox.last,
            **self.losses(),
        }
        title = f"Events of {self.process}" if self.process else "Events"
        return ServiceState(title=title, facts=facts)

    def _stored(self, queued: bytes) -> Stored | None:
        sequence, time, channel, data = queued.split(b" ", 3)
        number = int(sequence)
        metadata = {"outbox": self._outbox_id, "sequence": number}
        try:
            event = self._make_event(channel.decode(), int(time) / 1e9, data, metadata)
            body, cut = encode(event, self._limits.event_size)
        except Exception as error:  # noqa: BLE001 - telemetry: counted, and the others are sent
            self.count("events_dropped")
            self._warn("made", f"An event could not be made: {_named(error)}")
            return None
        self.count("events_cut", cut)
        message = Message(id=event.id, channel=event.channel, body=body)
        return Stored(number=number, message=message)

    async def _send(self, outbox: EventOutbox, bus: Bus, *, connected: bool) -> None:
        """Send what is in the outbox until the end; at the end, until it is empty."""
        retry_s, down = _FIRST_RETRY_S, not connected
        while True:
            try:
                if not connected:
                    await asyncio.wait_for(bus.open(), self._limits.call_s)
                    connected = True
                sent = await self._send_window(outbox, bus)
            except (AglError, OSError, TimeoutError) as error:
                connected, down = False, True
                self._warn("down", _waits(error))
                if self._ending.is_set() and self._flushed_by.tried():
                    return
                await self._pause(_random.uniform(0.5, 1.0) * retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
                continue
            if down:
                _log.info("The event bus takes events again")
                self._warned.discard("down")
                down = False
            retry_s = _FIRST_RETRY_S
            if not sent:
                if self._all_written:
                    return
                await self._settle(outbox)
                await self._written.wait()
                self._written.clear()

    async def _send_window(self, outbox: EventOutbox, bus: Bus) -> int:
        """Send the oldest events; return their number."""
        events = outbox.oldest(WINDOW)
        self.count("events_dropped", outbox.damaged)
        outbox.damaged = 0
        if not events:
            return 0
        messages = [event.message for event in events]
        outcomes = Counter(await asyncio.wait_for(bus.publish(messages), self._limits.call_s))
        outbox.remove(events)
        self.count("events_unroutable", outcomes["unroutable"])
        self.count("events_refused", outcomes["refused"])
        if outcomes["unroutable"]:
            self._warn("unroutable", "The bus had no subscriber for events: see events_unroutable")
        if outcomes["refused"]:
            self._warn("refused", "The bus refused events for good: see events_refused")
        return len(events)

    async def _settle(self, outbox: EventOutbox) -> None:
        """Unless more events come at once, delete those that were sent from the file."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._written.wait(), _SETTLE_S)
            return
        try:
            outbox.settle()
        except StoreError as error:
            self._warn("disk", f"{error}. Events that were sent may be sent again")

    async def _pause(self, seconds: float) -> None:
        if not self._ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), seconds)

    def _end(self, within_s: float) -> None:
        self._flushed_by.set(asyncio.get_running_loop().time() + within_s)
        self._ending.set()
        self._wake.set()
        self._written.set()

    def _warn(self, what: str, text: str) -> None:
        """Log a warning once, or once per outage."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", hidden(escaped(text)))


class _Moment:
    """The time at which the end of a run stops waiting, on the clock of the loop."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._tried = 0

    def set(self, at: float) -> None:
        self._at = at

    def left(self) -> float:
        at = self._at
        return 0.0 if at is None else at - asyncio.get_running_loop().time()

    def tried(self) -> bool:
        """Return whether the bus was tried at the end before this call or the time is over."""
        self._tried += 1
        return self._tried > 1 or self.left() <= 0


def _waits(error: BaseException) -> str:
    again = "it is tried again after up to 30 s, and events wait in the outbox"
    if isinstance(error, TimeoutError):
        return f"The event bus does not answer: {again}"
    if isinstance(error, ConfigError | BusError):
        return f"{error}: {again}"
    return f"The event bus cannot be used: {_named(error)}: {again}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
