"""What every event bus does, checked with a real server."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from agl_events import BusError, BusEvent, Message
from agl_events._bus import Bus, make_bus
from agl_events._event import encode, new_event

from agl_core.app import load_plugins
from agl_core.clocks import wall
from agl_core.errors import ConfigError

OUTBOX = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


def message(channel: str, **data: Any) -> Message:
    metadata = {"outbox": OUTBOX, "sequence": next(_NUMBERS)}
    event = new_event(channel, "tests", wall(), data, metadata)
    body, _ = encode(event, 2**26)
    return Message(id=event.id, channel=channel, body=body)


async def opened(url: str, prefix: str, **options: Any) -> Bus:
    bus = make_bus(url, load_plugins(), {"prefix": prefix, **options})
    await bus.open()
    return bus


async def refused(url: str, kind: type[Exception], **options: Any) -> str:
    """Return the one line that says why a bus cannot be opened."""
    bus = make_bus(url, load_plugins(), options)
    with pytest.raises(kind) as failed:
        await bus.open()
    await bus.close()
    assert failed.value.__cause__ is None
    text = str(failed.value)
    assert "\n" not in text
    assert "secret" not in text
    return text


async def taken(events: AsyncGenerator[BusEvent], count: int) -> list[BusEvent]:
    return [await asyncio.wait_for(anext(events), 60) for _ in range(count)]


class BusContract:
    """Supply the fixtures `url`, of a server, and `prefix`, of the test."""

    async def test_events_come_in_order_to_everybody(self, url: str, prefix: str) -> None:
        bus, first, second = [await opened(url, prefix) for _ in range(3)]
        async with (
            aclosing(first.listen(["run:*"], group=None, history=False)) as one,
            aclosing(second.listen(["run:*"], group=None, history=False)) as two,
        ):
            waiting = [asyncio.ensure_future(taken(each, 100)) for each in (one, two)]
            await self._listening(bus, first, second, prefix)
            sent = [message("run:started", n=n) for n in range(100)]
            await bus.publish([message("batch:built", n=-1)])
            await bus.publish(sent)
            for each in waiting:
                found = await each
                assert [event.data["n"] for event in found] == list(range(100))
                assert [event.id for event in found] == [each.id for each in sent]
        for each in (bus, first, second):
            await each.close()

    async def _listening(self, *_: Any) -> None:
        """Return once both listeners would get an event."""
        raise NotImplementedError

    async def test_members_of_a_group_share_the_events(self, url: str, prefix: str) -> None:
        bus, first, second = [await opened(url, prefix) for _ in range(3)]
        seen: list[int] = []

        async def work(member: Bus) -> None:
            async with aclosing(member.listen(["run:*"], group="g", history=False)) as events:
                async for event in events:
                    seen.append(event.data["n"])  # noqa: PERF401 - seen while it is written

        members = [asyncio.ensure_future(work(each)) for each in (first, second)]
        await self._group_exists(url, prefix, "g")
        await bus.publish([message("run:started", n=n) for n in range(100)])
        await until(lambda: len(set(seen)) == 100)
        assert sorted(seen) == list(range(100))
        for each in members:
            each.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        for each in (bus, first, second):
            await each.close()

    async def _group_exists(self, url: str, prefix: str, group: str) -> None:
        raise NotImplementedError

    async def test_a_group_goes_on_where_it_was(self, url: str, prefix: str) -> None:
        """An event that was not acknowledged is delivered again."""
        bus, member = await opened(url, prefix), await opened(url, prefix)
        async with aclosing(member.listen(["run:*"], group="g", history=False)) as events:
            coming = asyncio.ensure_future(taken(events, 3))
            await self._group_exists(url, prefix, "g")
            await bus.publish([message("run:started", n=n) for n in range(3)])
            await coming
        await member.close()
        await bus.publish([message("run:started", n=3)])
        again = await opened(url, prefix)
        async with aclosing(again.listen(["run:*"], group="g", history=False)) as events:
            found = await taken(events, 2)
        assert sorted(event.data["n"] for event in found) == [2, 3]
        for each in (bus, again):
            await each.close()

    async def test_any_event_arrives_as_it_was(self, url: str, prefix: str) -> None:
        bus, reader = await opened(url, prefix), await opened(url, prefix)
        async with aclosing(reader.listen(["*"], group="g", history=False)) as events:
            coming = asyncio.ensure_future(taken(events, 2))
            await self._group_exists(url, prefix, "g")
            large = "x" * 10_000_000
            texts = {"text": "a\x00b\ud83dc", "\x00": ["é", None, 1e300, -(2**60)]}
            outcomes = await bus.publish(
                [message("run:started", large=large), message("run:failed", **texts)]
            )
            assert list(outcomes) == ["delivered", "delivered"]
            found = {event.channel: event.data for event in await coming}
        assert found["run:started"] == {"large": large}
        assert found["run:failed"] == {
            "text": "a\x00b\ufffdc",
            "\x00": ["é", None, 1e300, -(2**60)],
        }
        for each in (bus, reader):
            await each.close()

    @pytest.mark.parametrize("use", ["publish", "listen"])
    async def test_a_connection_that_is_lost_is_a_bus_error(
        self, stoppable: Any, prefix: str, use: str
    ) -> None:
        bus = await opened(stoppable.url, prefix)
        await bus.publish([message("run:started")])
        if use == "publish":
            stoppable.stop()
            with pytest.raises(BusError):
                await bus.publish([message("run:started")])
            with pytest.raises(BusError):
                await bus.open()
            stoppable.start()
            await bus.open()
            await bus.publish([message("run:started")])
        else:
            async with aclosing(bus.listen(["*"], group=None, history=False)) as events:
                coming = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0)
                stoppable.stop()
                with pytest.raises(BusError):
                    await coming
        await bus.close()

    async def test_nobody_at_the_address_is_a_bus_error(self, nowhere: str, prefix: str) -> None:
        bus = make_bus(nowhere, load_plugins(), {"prefix": prefix})
        with pytest.raises(BusError, match="cannot be reached") as failed:
            await bus.open()
        assert "secret" not in str(failed.value)
        await bus.close()

    async def test_a_wrong_password_is_a_config_error_that_does_not_show_it(
        self, wrong_password: str, prefix: str
    ) -> None:
        bus = make_bus(wrong_password, load_plugins(), {"prefix": prefix})
        with pytest.raises(ConfigError, match="refuses") as failed:
            await bus.open()
        assert "secret" not in str(failed.value)
        assert failed.value.__cause__ is None
        await bus.close()


async def until(true: Callable[[], bool | Awaitable[bool]]) -> None:
    for _ in range(6_000):
        found = true()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass within 60 s")
