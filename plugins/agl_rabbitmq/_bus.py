"""An event bus in RabbitMQ: a durable topic exchange, with a routing key per channel."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import aio_pika
import msgspec
from agl_events import (
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
from aio_pika import exceptions
from aio_pika.abc import (
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    AbstractQueue,
)
from aiormq import exceptions as protocol
from pamqp.commands import Basic

from agl_core.errors import ConfigError

_AUTHORITIES: Final = "cafile"
_PREFETCH: Final = 64
"""Events that a reader holds before it acknowledges some."""
_REFUSED: Final = (
    protocol.AuthenticationError,
    protocol.ProbableAuthenticationError,
    protocol.ConnectionNotAllowed,
    protocol.ChannelAccessRefused,
)
"""Wrong user, password, name of the virtual host or rights."""


class RabbitBus:
    """The exchange ``<prefix>.events`` of a RabbitMQ server; implements `agl_events.Bus`.

    The routing key is the channel with ``.`` for ``:``. Messages are persistent, and each is
    confirmed. A group is a durable queue ``<prefix>.<group>``; without one, a queue lives as long
    as its reader.
    """

    def __init__(self, url: str, options: BusOptions) -> None:
        """Read the address without connecting.

        Raises:
            ConfigError: the address has more than one name after the host, or its file of
                authorities cannot be used.
        """
        self._url, self._options = url, options
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None
        self.listening = False
        """Whether a queue gets the events of `listen`."""
        check_authorities(url, _AUTHORITIES)
        path = urlsplit(url).path
        if path.count("/") > 1:
            raise ConfigError(
                f"events.url = {hidden(url)!r} has several names after the host: write "
                f"amqp://[USER:PASSWORD@]HOST[:PORT]/[VIRTUAL HOST], with %2F for / in the name"
            )

    async def open(self) -> None:
        await self.close()
        try:
            with self._errors(opening=True), _quiet():
                await self._connect()
        except BaseException:
            await self.close()
            raise

    async def publish(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Send all messages, then wait for all confirmations."""
        exchange = self._opened()[1]
        with self._errors():
            sent = [self._publish(exchange, message) for message in messages]
            found = await asyncio.gather(*sent, return_exceptions=True)
            failed = [each for each in found if isinstance(each, BaseException)]
            if any(_is_too_large(each) for each in failed):
                return await self._publish_singly(messages)
            for each in failed:
                raise each
        return [each for each in found if not isinstance(each, BaseException)]

    async def listen(
        self, channels: Collection[str], *, group: str | None, history: bool
    ) -> AsyncGenerator[BusEvent]:
        if history:
            _no_history()
        connection, exchange = self._opened()
        with self._errors():
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=_PREFETCH)
            queue: AbstractQueue
            if group is None:
                queue = await channel.declare_queue(exclusive=True, auto_delete=True)
            else:
                queue = await channel.declare_queue(self._name(group), durable=True)
            for pattern in channels:
                await queue.bind(exchange, _binding(pattern))
            async with queue.iterator() as incoming:
                self.listening = True
                async for message in incoming:
                    event = _event(message)
                    if event is not None and wanted(channels, event.channel):
                        yield event
                    await message.ack()
            raise BusError(f"RabbitMQ at {hidden(self._url)} ended the subscription")

    async def history(self, channels: Collection[str], limit: int) -> list[BusEvent]:
        del channels, limit
        _no_history()

    async def clear(self, channels: Collection[str]) -> dict[str, int]:
        del channels
        _no_history()

    async def close(self) -> None:
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            with suppress(exceptions.AMQPException, OSError, RuntimeError):
                await connection.close()

    async def _connect(self) -> None:
        connection = await aio_pika.connect(self._url, timeout=self._options.timeout_s)
        self._connection = connection
        channel = await connection.channel(publisher_confirms=True)
        self._exchange = await channel.declare_exchange(
            self._name("events"), aio_pika.ExchangeType.TOPIC, durable=True
        )

    async def _publish_singly(self, messages: Sequence[Message]) -> Sequence[Delivery]:
        """Send messages one by one: the server closes the channel at one that is too large."""
        outcomes: list[Delivery] = []
        await self.open()
        for message in messages:
            try:
                outcomes.append(await self._publish(self._opened()[1], message))
            except exceptions.AMQPException as error:
                if not _is_too_large(error):
                    raise
                outcomes.append("refused")
                await self.open()
        return outcomes

    async def _publish(self, exchange: AbstractExchange, message: Message) -> Delivery:
        confirmed = await exchange.publish(
            aio_pika.Message(
                message.body,
                message_id=message.id,
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                app_id="agl-core",
                type=message.channel,
            ),
            routing_key=_key(message.channel),
            mandatory=True,
            timeout=self._options.timeout_s,
        )
        returned = getattr(confirmed, "delivery", None)
        return "unroutable" if isinstance(returned, Basic.Return) else "delivered"

    def _opened(self) -> tuple[AbstractConnection, AbstractExchange]:
        if self._connection is None or self._exchange is None:
            raise BusError(f"RabbitMQ at {hidden(self._url)} is not connected")
        return self._connection, self._exchange

    def _name(self, name: str) -> str:
        return f"{self._options.prefix}.{name}"

    @contextmanager
    def _errors(self, *, opening: bool = False) -> Generator[None]:
        """Raise errors of the library as `BusError` and `ConfigError`, without the password."""
        place = f"RabbitMQ at {hidden(self._url)}"
        try:
            yield
        except (*_REFUSED, protocol.InvalidFrameError) as error:
            # The answer to a virtual host that does not exist is a frame that the library
            # does not expect.
            if not isinstance(error, _REFUSED) and "Connection.Close" not in str(error):
                raise BusError(f"{place} cannot be reached: {hidden(str(error))}") from None
            raise ConfigError(
                f"{place} refuses user, password, virtual host or rights "
                f"({type(error).__name__}): correct events.url"
            ) from None
        except (protocol.ChannelPreconditionFailed, protocol.ChannelLockedResource) as error:
            raise ConfigError(
                f"{place} has an exchange or queue of the same name in another form "
                f"({hidden(str(error))}): delete it, or set events.prefix"
            ) from None
        except (exceptions.AMQPException, OSError, TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not _lost(self._connection):
                raise
            if refused := distrust(error, place, _AUTHORITIES):
                raise refused from None
            said = hidden(str(error)) or type(error).__name__
            hint = tls_hint(self._url, error, plain="amqp") if opening else ""
            raise BusError(f"{place} cannot be reached: {said}{hint}") from None


@contextmanager
def _quiet() -> Generator[None]:
    """Keep the library from logging why it could not connect: the error says it, once per outage."""
    logger, silent = logging.getLogger("aiormq.connection"), ContextVar("silent", default=False)
    silent.set(True)  # for the tasks that begin inside; other users of the library log on

    def speaks(record: logging.LogRecord) -> bool:
        del record
        return not silent.get()

    logger.addFilter(speaks)
    try:
        yield
    finally:
        logger.removeFilter(speaks)


def _is_too_large(error: BaseException) -> bool:
    return isinstance(error, protocol.ChannelPreconditionFailed) and "size" in str(error)


def _lost(connection: Any) -> bool:
    """Return whether a connection ended, in which case the library cancels who waits for it."""
    return connection is not None and connection.is_closed


def _no_history() -> NoReturn:
    raise ConfigError(
        "RabbitMQ keeps no history of events: a subscriber with a group gets all that come after "
        "its first start; use a bus such as Redis for history"
    )


def _key(channel: str) -> str:
    return channel.replace(":", ".")


def _binding(pattern: str) -> str:
    """Return the routing pattern that has all keys of a glob; the reader then matches exactly."""
    words = _key(re.split(r"[*?\[]", pattern)[0])
    if words == _key(pattern):
        return words
    whole = words.rpartition(".")[0]
    return f"{whole}.#" if whole else "#"


def _event(message: AbstractIncomingMessage) -> BusEvent | None:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return decode(message.body)
    return None
