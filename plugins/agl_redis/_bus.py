"""An event bus in Redis: a stream per channel, which keeps the newest events."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from agl_events import (
    CHANNELS,
    BusError,
    BusEvent,
    BusOptions,
    Delivery,
    Message,
    check_authorities,
    decode,
    distrust,
    hidden,
    tls_hint,
    wanted,
)
from redis import asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from agl_core.clocks import new_id
from agl_core.errors import ConfigError

_FIELD: Final = b"event"
_START: Final = "0-0"
_BLOCK_MS: Final = 1_000
"""Longest wait of one request for new events; then channels that are new since are looked for."""
_COUNT: Final = 100
_LEAVE_S: Final = 2.0
"""Longest wait for the server when a member leaves its group."""
_ABANDONED_MS: Final = 60_000
"""A member of a group that has not acknowledged an event for this long loses it to another one."""
_AUTHORITIES: Final = "ssl_ca_certs"
_LOGIN: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)
_UNKNOWN: Final = re.compile(r"unexpected keyword argument ('\w+')")
_FOR_GOOD: Final = ("ERR", "WRONGTYPE")
"""Codes of answers that another try would get too; the library leaves the first one out."""


class RedisBus:
    """Streams ``<prefix>:<channel>`` at a Redis server; implements `agl_events.Bus`.

    Works with Redis ≥ 6.2 and Valkey, without cluster. The set ``<prefix>:channels`` has the names
    of all channels.
    """

    def __init__(self, url: str, options: BusOptions) -> None:
        """Read the address without connecting.

        Raises:
            ConfigError: the address is wrong.
        """
        self._url, self._options = url, options
        self._client: redis.Redis | None = None
        check_authorities(url, _AUTHORITIES)
        self._make()

    async def open(self) -> None:
        await self.close()
        client = self._make()
        try:
            with self._errors(opening=True):
                await client.ping()
        except BaseException:
            await client.aclose()
            raise
        self._client = client

    async def publish(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Append all messages to their streams in one request."""
        pipeline = self._connected.pipeline(transaction=False)
        names = {message.channel for message in messages}
        pipeline.sadd(self._channels_key, *names)
        for message in messages:
            pipeline.xadd(
                self._key(message.channel),
                {_FIELD: message.body},
                maxlen=self._options.history,
                approximate=True,
            )
        with self._errors():
            _, *answers = await pipeline.execute(raise_on_error=False)
            return [_outcome(answer) for answer in answers]

    async def listen(
        self, channels: Collection[str], *, group: str | None, history: bool
    ) -> AsyncGenerator[BusEvent]:
        with self._errors():
            events = (
                self._listen_alone(channels, history=history)
                if group is None
                else self._listen_as_member(channels, group, history=history)
            )
            async with aclosing(events):  # a member leaves its group before the connection closes
                async for event in events:
                    yield event

    async def history(self, channels: Collection[str], limit: int) -> list[BusEvent]:
        with self._errors():
            found: list[tuple[tuple[Any, ...], BusEvent]] = []
            for channel in await self._matching(channels):
                entries: Any = await self._connected.xrevrange(self._key(channel), count=limit)
                found += [(_order(id_, event), event) for id_, event in _events(entries)]
        found.sort(key=lambda each: each[0])
        return [event for _, event in found[-limit:]]

    async def clear(self, channels: Collection[str]) -> dict[str, int]:
        """Delete the events and keep the streams with their groups."""
        deleted: dict[str, int] = {}
        with self._errors():
            for channel in await self._matching(channels):
                count: Any = await self._connected.xtrim(
                    self._key(channel), maxlen=0, approximate=False
                )
                deleted[channel] = count
        return deleted

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(exceptions.RedisError, OSError):
                await client.aclose()

    async def _listen_alone(
        self, channels: Collection[str], *, history: bool
    ) -> AsyncGenerator[BusEvent]:
        after = {
            channel: _START if history else await self._last(channel)
            for channel in await self._expected(channels)
        }
        while True:
            streams = {self._key(channel): id_ for channel, id_ in after.items()}
            found = await self._read(self._connected.xread, streams)
            for channel, id_, event in found:
                after[channel] = id_
                if event is not None:
                    yield event
            if not found:
                for channel in await self._expected(channels):
                    after.setdefault(channel, _START)

    async def _listen_as_member(
        self, channels: Collection[str], group: str, *, history: bool
    ) -> AsyncGenerator[BusEvent]:
        member = new_id(f"{socket.gethostname()}-{os.getpid()}")
        joined: list[str] = []
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            while True:
                if task and task.cancelling() > before:  # a request did not pass it on
                    raise asyncio.CancelledError
                await self._join(channels, group, joined, history=history)
                found = await self._abandoned(joined, group, member)
                if not found:
                    streams = {self._key(channel): ">" for channel in joined}
                    found = await self._read(self._connected.xreadgroup, streams, group, member)
                for channel, id_, event in found:
                    if event is not None:
                        yield event
                    await self._connected.xack(self._key(channel), group, id_)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._leave(joined, group, member)

    async def _read(
        self, ask: Any, streams: dict[str, str], *member: str
    ) -> list[tuple[str, str, BusEvent | None]]:
        """Return the new entries of streams with channel and id, in order; [] after a while."""
        if member:
            answer = await ask(*member, streams, count=_COUNT, block=_BLOCK_MS)
        else:
            answer = await ask(streams, count=_COUNT, block=_BLOCK_MS)
        pairs: list[tuple[bytes, Any]] = _pairs(answer)
        found = [
            (self._channel(key), id_, event)
            for key, entries in pairs
            for id_, event in _events(entries, broken=True)
        ]
        found.sort(key=lambda each: _order(*each[1:]))
        return found

    async def _join(
        self, channels: Collection[str], group: str, joined: list[str], *, history: bool
    ) -> None:
        """Create the group at the streams of channels that are new."""
        first = not joined
        for channel in await self._expected(channels):
            if channel in joined:
                continue
            start = _START if history or not first else await self._last(channel)
            try:
                await self._connected.xgroup_create(
                    self._key(channel), group, id=start, mkstream=True
                )
            except exceptions.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
            joined.append(channel)

    async def _abandoned(
        self, joined: Sequence[str], group: str, member: str
    ) -> list[tuple[str, str, BusEvent | None]]:
        """Take over events that other members have not acknowledged for a long time."""
        found: list[tuple[str, str, BusEvent | None]] = []
        pipeline = self._connected.pipeline(transaction=False)
        for channel in joined:
            pipeline.xautoclaim(
                self._key(channel), group, member, min_idle_time=self._abandoned_ms, count=_COUNT
            )
        for channel, answer in zip(joined, await pipeline.execute(), strict=True):
            found += [(channel, id_, event) for id_, event in _events(answer[1], broken=True)]
        return found

    async def _leave(self, joined: Sequence[str], group: str, member: str) -> None:
        """Give unacknowledged events back to the group, or remove a member that has none."""
        client = self._client
        if client is None:
            return
        with suppress(exceptions.RedisError, OSError):
            for channel in joined:
                key = self._key(channel)
                pending: Any = await client.xpending_range(
                    key, group, min="-", max="+", count=_COUNT, consumername=member
                )
                if pending:  # as if it had them for long, so that another one takes them over
                    ids = [each["message_id"] for each in pending]
                    await client.xclaim(
                        key, group, member, 0, ids, idle=2 * _ABANDONED_MS, justid=True
                    )
                else:
                    await client.xgroup_delconsumer(key, group, member)

    async def _expected(self, channels: Collection[str]) -> list[str]:
        """Return the channels to listen to: those of runs, those that exist and exact names."""
        named = {each for each in channels if not set(each) & set("*?[")}
        known = {*CHANNELS, *await self._known()}
        return sorted(named | {channel for channel in known if wanted(channels, channel)})

    async def _matching(self, channels: Collection[str]) -> list[str]:
        return sorted(each for each in await self._known() if wanted(channels, each))

    async def _known(self) -> set[str]:
        names: Any = await self._connected.smembers(self._channels_key)
        return {name.decode("utf-8", "replace") for name in names}

    async def _last(self, channel: str) -> str:
        """Return the id of the newest entry that a stream had; entries may have been deleted."""
        try:
            info: Any = await self._connected.xinfo_stream(self._key(channel))
        except exceptions.ResponseError as error:
            if "no such key" not in str(error).lower():
                raise
            return _START
        return info["last-generated-id"].decode()

    @property
    def _abandoned_ms(self) -> int:
        return _ABANDONED_MS

    @property
    def _connected(self) -> redis.Redis:
        if self._client is None:
            raise BusError(f"{hidden(self._url)} is not connected")
        return self._client

    @property
    def _channels_key(self) -> str:
        return f"{self._options.prefix}:channels"

    def _key(self, channel: str) -> str:
        return f"{self._options.prefix}:{channel}"

    def _channel(self, key: bytes) -> str:
        return key.decode().removeprefix(f"{self._options.prefix}:")

    def _make(self) -> redis.Redis:
        wait_s = self._options.timeout_s
        try:
            if database := urlsplit(self._url).path.strip("/"):
                int(database)  # the library would take another database
            made: redis.Redis = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
                self._url,
                socket_connect_timeout=wait_s,
                socket_timeout=wait_s + _BLOCK_MS / 1_000,
                retry=Retry(NoBackoff(), 0),  # the sender tries again, and says so
            )
            made.connection_pool.make_connection()  # connects to nothing
        except (ValueError, TypeError) as error:
            unknown = _UNKNOWN.search(str(error))
            raise ConfigError(
                f"events.url = {hidden(self._url)!r} is no address of a Redis database"
                f"{f': unknown option {unknown[1]}' if unknown else ''}: write "
                f"redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or with TLS "
                f"rediss://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?{_AUTHORITIES}=FILE]"
            ) from (None if "@" in self._url else error)
        return made

    @contextmanager
    def _errors(self, *, opening: bool = False) -> Generator[None]:
        """Raise errors of the library as `BusError` and `ConfigError`, without the password."""
        place = f"Redis at {hidden(self._url)}"
        try:
            yield
        except _LOGIN as error:
            raise ConfigError(
                f"{place} refuses user or password: {error}: correct events.url"
            ) from None
        except exceptions.InvalidResponse as error:
            raise ConfigError(f"{place} does not speak Redis' protocol: {error}") from None
        except exceptions.ResponseError as error:
            if str(error).startswith(("DB index", "NOAUTH", "ERR DB index", "NOPERM")):
                raise ConfigError(f"{place} refuses: {error}: correct events.url") from None
            raise BusError(f"{place} refuses: {error}") from None
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            if refused := distrust(error, place, _AUTHORITIES):
                raise refused from None
            said = hidden(str(error)) or type(error).__name__
            hint = tls_hint(self._url, error, plain="redis") if opening else ""
            raise BusError(f"{place} cannot be reached: {said}{hint}") from None


def _outcome(answer: Any) -> Delivery:
    """Return what became of one message.

    Raises:
        RedisError: the server refuses all messages for now, for example without memory.
    """
    if not isinstance(answer, Exception):
        return "delivered"
    code = str(answer).partition(" ")[0]
    if type(answer) is exceptions.ResponseError and (code in _FOR_GOOD or not code.isupper()):
        return "refused"
    raise answer


def _pairs(answer: Any) -> list[tuple[bytes, Any]]:
    """Return key and entries of an answer to XREAD, in either version of the protocol."""
    if not answer:
        return []
    pairs: list[tuple[bytes, Any]] = list(answer.items() if isinstance(answer, dict) else answer)
    # The newer version has a list of lists.
    return [(key, each[0] if each and isinstance(each[0], list) else each) for key, each in pairs]


def _events(entries: Any, *, broken: bool = False) -> list[tuple[str, Any]]:
    """Return id and event of entries; None for one that is no event, if `broken`."""
    found: list[tuple[str, BusEvent | None]] = []
    for id_, fields in entries:
        if id_ is None:  # Redis 6: an entry that was deleted since
            continue
        event = None
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            event = decode((fields or {}).get(_FIELD, b""))
        if event is not None or broken:
            found.append((id_.decode(), event))
    return found


def _order(id_: str, event: BusEvent | None) -> tuple[Any, ...]:
    """Return what orders events of several streams: the server's time, then the run's numbers.

    The clocks of the machines that publish may be wrong: they order only events without a number.
    """
    at, _, number = id_.partition("-")
    if event is None:
        return (int(at), "", 0, int(number), "")
    outbox, sequence = event.metadata.get("outbox"), event.metadata.get("sequence")
    counted = sequence if isinstance(sequence, int) else 0
    return (int(at), str(outbox), counted, int(number), event.id)
