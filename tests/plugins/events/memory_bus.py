"""An event bus in this process, whose server a test can stop, and which writes to a file if asked."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agl_events import BusError, BusEvent, BusOptions, Message, decode, wanted

from agl_core.errors import ConfigError
from agl_core.plugins import hookimpl


class Server:
    """What all connections share."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.windows: list[int] = []
        self.down = False
        self.hangs = False
        self.login_fails = False
        self.outcomes: list[Any] = []
        self.tries = 0
        self.closed = 0

    @property
    def events(self) -> list[BusEvent]:
        return [decode(message.body) for message in self.taken]

    @property
    def channels(self) -> list[str]:
        return [message.channel for message in self.taken]


SERVERS: dict[str, Server] = {}
"""Host of the address to its server."""


def server_of(host: str) -> Server:
    return SERVERS.setdefault(host, Server())


class MemoryBus:
    def __init__(self, url: str, options: BusOptions) -> None:
        parts = urlsplit(url)
        self.options = options
        self.server = server_of(parts.hostname or "")
        self.file = Path(parts.path) if len(parts.path) > 1 else None

    async def open(self) -> None:
        self.server.tries += 1
        if self.server.login_fails:
            raise ConfigError("the bus refuses the password")
        await self._up()

    async def publish(self, messages: Sequence[Message]) -> list[Any]:
        await self._up()
        self.server.taken += messages
        self.server.windows.append(len(messages))
        if self.file is not None:
            with self.file.open("ab") as stream:
                stream.writelines(message.body + b"\n" for message in messages)
        given = self.server.outcomes or ["delivered"]
        return [given[number % len(given)] for number in range(len(messages))]

    async def listen(
        self, channels: Collection[str], *, group: str | None, history: bool
    ) -> AsyncGenerator[BusEvent]:
        await self._up()
        for event in self.server.events:
            if wanted(channels, event.channel):
                yield event

    async def history(self, channels: Collection[str], limit: int) -> list[BusEvent]:
        await self._up()
        return [each for each in self.server.events if wanted(channels, each.channel)][-limit:]

    async def clear(self, channels: Collection[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for message in [each for each in self.server.taken if wanted(channels, each.channel)]:
            self.server.taken.remove(message)
            found[message.channel] = found.get(message.channel, 0) + 1
        return found

    async def close(self) -> None:
        self.server.closed += 1

    async def _up(self) -> None:
        if self.server.hangs:
            await asyncio.Event().wait()
        if self.server.down:
            raise BusError("memory://user:secret@host is down")


@hookimpl
def agl_register_observers(register: Callable[..., None]) -> None:
    register(
        "events.memory",
        f"{__name__}:MemoryBus",
        config="agl_events:BusOptions",
        summary="an event bus in this process",
    )
