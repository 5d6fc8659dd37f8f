"""What an event bus does, and the choice of one by the scheme of its address."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from agl_core.config import scheme_of, validate
from agl_core.errors import AglError, ConfigError
from agl_core.plugins import PluginManager, Registry
from agl_events._event import BusEvent

_KIND: Final = "events."
_LOGIN: Final = re.compile(r"://\S*@")
_PASSWORD: Final = re.compile(r"([?&]\w*password=)[^&\s'\"]*")


class BusError(AglError):
    """An event bus is down, refuses or does not answer; trying again later may help."""


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """An event as it is sent."""

    id: str
    channel: str
    body: bytes
    """The event as JSON."""


Delivery = Literal["delivered", "unroutable", "refused"]
"""What became of a message: ``unroutable`` without a subscriber, if the bus keeps no history,
``refused`` if the bus will never take it."""


class Bus(Protocol):
    """A connection to an event bus. All methods are called on one event loop."""

    async def open(self) -> None:
        """Connect, or connect again after an error.

        Raises:
            BusError: the server cannot be reached.
            ConfigError: it refuses the user, the password or the name of the database.
        """
        ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Send messages in this order and return once the server has confirmed all of them.

        Raises:
            BusError: it is not known which messages the server took; they have to be sent again.
            ConfigError: as for `open`.
        """
        ...

    def listen(
        self, channels: Collection[str], *, group: str | None, history: bool
    ) -> AsyncGenerator[BusEvent]:
        """Yield events; asking for the next acknowledges the one before.

        Args:
            channels: Names or globs of channels.
            group: Name of a consumer group: each event goes to one of its members, and is
                delivered again if that member ends without asking for the next.
            history: Begin with the kept events, for a group only when it is new.

        Raises:
            BusError: the connection was lost.
            ConfigError: as for `open`, or the bus has no history.
        """
        ...

    async def history(self, channels: Collection[str], limit: int) -> list[BusEvent]:
        """Return the newest kept events, oldest first.

        Raises:
            BusError, ConfigError: as for `listen`.
        """
        ...

    async def clear(self, channels: Collection[str]) -> dict[str, int]:
        """Delete the kept events; return their number by channel.

        Raises:
            BusError, ConfigError: as for `listen`.
        """
        ...

    async def close(self) -> None:
        """Disconnect; the last call."""
        ...


def wanted(channels: Collection[str], channel: str) -> bool:
    """Return whether a name or glob of `channels` matches a channel."""
    return any(fnmatchcase(channel, pattern) for pattern in channels)


def hidden(text: str) -> str:
    """Replace user names and passwords of the addresses in a text."""
    return _PASSWORD.sub(r"\1***", _LOGIN.sub("://***@", text))


def make_bus(url: str, plugins: PluginManager, options: Mapping[str, Any] | None = None) -> Bus:
    """Make the bus of an address, without connecting.

    Args:
        url: The address, such as ``redis://127.0.0.1:6379/0``.
        plugins: The loaded plugins, one of which registers the scheme.
        options: Options that the plugin of the scheme has, checked by its model.

    Raises:
        ConfigError: the address or an option is wrong, or no plugin registers the scheme.
        MissingExtraError: the library of the bus is not installed.
    """
    registry = plugins.registry("observers")
    name = f"{_KIND}{_checked_scheme(url, registry)}"
    model = registry.options_model(name)
    assert model is not None, f"{name} is registered without options"
    made: Bus = registry.create(name, url, validate(model, options or {}, where="events"))
    return made


def _checked_scheme(url: str, registry: Registry) -> str:
    """Return the scheme of an address with a host and a valid port."""
    found = (name.removeprefix(_KIND) for name in registry.names() if name.startswith(_KIND))
    known = [name for name in found if name != "runner"]
    scheme = scheme_of(url).lower()
    if scheme not in known:
        shown = hidden(url) if "://" in url else url.rpartition("@")[2]
        raise ConfigError(
            f"events.url = {shown!r} has the scheme {scheme!r}: use one of "
            f"{', '.join(f'{each}://' for each in known) or 'none, as no plugin has one'}"
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise ConfigError(
            f"events.url = {hidden(url)!r} has no host or a wrong port: write "
            f"{scheme}://[USER:PASSWORD@]HOST[:PORT][/NAME], and in user and password %40 for @, "
            f"%2F for / and %3A for :"
        )
    return scheme


async def listening(
    bus: Bus, channels: Collection[str], *, group: str | None, history: bool
) -> AsyncGenerator[BusEvent]:
    """Open a bus, yield its events, and close it."""
    try:
        await bus.open()
        async with aclosing(bus.listen(channels, group=group, history=history)) as events:
            async for event in events:
                yield event
    finally:
        await bus.close()
