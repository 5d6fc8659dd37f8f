"""Reading events from a bus in a user's program."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import aclosing
from typing import Any

from agl_core.app import load_plugins
from agl_core.clocks import steady_loop
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager
from agl_events._bus import Bus, listening, make_bus, wanted
from agl_events._event import BusEvent

_log = logging.getLogger(__name__)

Handler = Callable[[BusEvent], Any]
"""Takes an event; may be async."""


class Subscription:
    """Events of a bus, as they come: ``for event in subscription`` or ``async for``.

    Asking for the next event acknowledges the one before. In a consumer group, an event that was not
    acknowledged is delivered again, to this member or to another one; so an event may come twice,
    with the same `BusEvent.id`. The loop ends with `BusError` if the connection is lost: the position
    of a group is kept by the server.
    """

    def __init__(
        self,
        make: Callable[[], Bus],
        channels: Collection[str],
        *,
        group: str | None,
        history: bool,
    ) -> None:
        """Configure the subscription without connecting; use `subscribe`."""
        self._make, self._channels = make, channels
        self._group, self._history = group, history

    def __aiter__(self) -> AsyncGenerator[BusEvent]:
        """Connect and yield events on the running event loop."""
        return listening(self._make(), self._channels, group=self._group, history=self._history)

    def __iter__(self) -> Generator[BusEvent]:
        """Connect and yield events; a thread of its own keeps the connection alive meanwhile."""
        loop = steady_loop()
        thread = threading.Thread(target=loop.run_forever, name="agl-subscription", daemon=True)
        thread.start()
        events, reading = aiter(self), set[asyncio.Task[Any]]()
        try:
            while True:
                coming = asyncio.run_coroutine_threadsafe(_next(events, reading), loop)
                event = coming.result()
                if event is None:
                    return
                yield event
        finally:
            asyncio.run_coroutine_threadsafe(_end(events, reading), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def subscribe(
    url: str,
    channels: Collection[str] | str = ("*",),
    *,
    group: str | None = None,
    history: bool = False,
    prefix: str = "agl",
    plugins: PluginManager | None = None,
) -> Subscription:
    """Return the events of a bus, to be iterated over.

    ::

        for event in agl_events.subscribe("redis://localhost:6379", ["run:*"], group="alerts"):
            print(event.time, event.channel, event.data)

    Args:
        url: Address of the bus.
        channels: Names or globs, such as ``rollout:*``.
        group: Name of a consumer group, whose members share the events; None: all events come.
        history: Begin with the events that the bus keeps; for a group only when it is new.
        prefix: ``events.prefix`` of the runs.
        plugins: Loaded plugins; None: load those that are installed.

    Raises:
        ConfigError: the address is wrong, or no channel is named.
        MissingExtraError: the library of the bus is not installed.
    """
    named = (channels,) if isinstance(channels, str) else tuple(channels)
    if not named or not all(named):
        raise ConfigError("subscribe needs at least one channel: use '*' for all of them")
    loaded = plugins or load_plugins()
    options = {"prefix": prefix}
    make_bus(url, loaded, options)  # a wrong address fails here
    return Subscription(lambda: make_bus(url, loaded, options), named, group=group, history=history)


async def handle(
    url: str,
    handlers: Mapping[str, Handler],
    *,
    group: str | None = None,
    **options: Any,
) -> None:
    """Call handlers with the events of their channels, until cancelled.

    A handler that raises is logged with the event's id; the other handlers get the event, and all
    get the next one.

    Args:
        url: Address of the bus.
        handlers: Name or glob of channels to its handler, which may be async.
        group: As for `subscribe`.
        options: The other arguments of `subscribe`.

    Raises:
        BusError: the connection was lost.
        ConfigError, MissingExtraError: as for `subscribe`.
    """
    found = subscribe(url, [*handlers], group=group, **options)
    async with aclosing(aiter(found)) as events:
        async for event in events:
            for pattern, handler in handlers.items():
                if wanted([pattern], event.channel):
                    await _call(handler, event)


async def _call(handler: Handler, event: BusEvent) -> None:
    try:
        made = handler(event)
        if inspect.isawaitable(made):
            await made
    except Exception:  # noqa: BLE001 - a handler hurts only itself
        name = getattr(handler, "__qualname__", repr(handler))
        _log.warning("Handler %s failed at event %s", name, event.id, exc_info=True)


async def _next(
    events: AsyncGenerator[BusEvent], reading: set[asyncio.Task[Any]]
) -> BusEvent | None:
    task = asyncio.current_task()
    assert task is not None
    reading.add(task)
    try:
        return await anext(events, None)
    finally:
        reading.discard(task)


async def _end(events: AsyncGenerator[BusEvent], reading: set[asyncio.Task[Any]]) -> None:
    """Close the generator, which the program may have interrupted while it waited."""
    interrupted = [*reading]
    for task in interrupted:
        task.cancel()
    await asyncio.gather(*interrupted, return_exceptions=True)
    await events.aclose()
