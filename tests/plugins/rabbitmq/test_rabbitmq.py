"""RabbitMQ as an event bus: routes, confirmations, groups, runs and outages, on a real server."""

import asyncio
import gc
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from agl_events import BusError
from agl_events._bus import make_bus
from agl_rabbitmq._bus import _binding
from agl_testing.plugin_contract import PluginContract
from aiormq.exceptions import ChannelNotFoundEntity

from agl_core.app import load_plugins
from agl_core.errors import ConfigError
from tests.core.app.conftest import Bench
from tests.plugins.events.bus_contract import (
    BusContract,
    message,
    opened,
    refused,
    taken,
    until,
)
from tests.plugins.limits.authority import Authority
from tests.plugins.rabbitmq.conftest import MOST_BYTES, RabbitServer, free_port

# aio-pika leaves a task behind for each connection that the server refused or lost.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <coroutine object OneShotCallback:"
    "pytest.PytestUnraisableExceptionWarning"
)


class TestPlugin(PluginContract):
    plugin = "agl_rabbitmq.plugin"
    frameworks = ("aio_pika", "aiormq", "pamqp")


class TestRabbitBus(BusContract):
    @pytest.fixture
    def url(self, shared: RabbitServer) -> str:
        return shared.url

    @pytest.fixture
    def stoppable(self, shared: RabbitServer) -> RabbitServer:
        return shared

    @pytest.fixture
    def nowhere(self) -> str:
        return f"amqp://user:secret@127.0.0.1:{free_port()}/"

    @pytest.fixture
    def wrong_password(self, shared: RabbitServer) -> str:
        return f"amqp://guest:secret@127.0.0.1:{shared.port}/"

    async def _listening(self, bus: Any, first: Any, second: Any, prefix: str) -> None:
        await until(lambda: bool(first.listening and second.listening))

    async def _group_exists(self, url: str, prefix: str, group: str) -> None:
        async def there() -> bool:
            connection = await aio_pika.connect(url)
            try:
                channel = await connection.channel()
                queue = await channel.declare_queue(f"{prefix}.{group}", passive=True)
            except ChannelNotFoundEntity:
                return False
            finally:
                await connection.close()
            return queue.declaration_result.consumer_count > 0

        await until(there)


@pytest.mark.parametrize(
    ("pattern", "bound"),
    [
        ("run:started", "run.started"),
        ("run:*", "run.#"),
        ("run*", "#"),
        ("*", "#"),
        ("*:started", "#"),
        ("a:b:c?", "a.b.#"),
        ("a:[bc]", "a.#"),
    ],
)
def test_a_glob_is_bound_by_the_words_before_it(pattern: str, bound: str) -> None:
    assert _binding(pattern) == bound


async def test_events_are_persistent_and_routed_by_channel(url: str, prefix: str) -> None:
    bus = await opened(url, prefix)
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    exchange = await channel.get_exchange(f"{prefix}.events")
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange, "run.*")
    sent = [message("run:started", n=1), message("batch:built", n=2)]
    assert await bus.publish(sent) == ["delivered", "unroutable"]
    found = await queue.get(timeout=60)
    assert found.routing_key == "run.started"
    assert found.message_id == sent[0].id
    assert found.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert found.content_type == "application/json"
    assert found.body == sent[0].body
    await connection.close()
    await bus.close()


async def test_events_for_a_group_outlive_the_server(shared: RabbitServer, prefix: str) -> None:
    bus = await opened(shared.url, prefix)
    async with aclosing(bus.listen(["run:*"], group="g", history=False)) as events:
        coming = asyncio.ensure_future(anext(events))
        other = await opened(shared.url, prefix)
        await TestRabbitBus()._group_exists(shared.url, prefix, "g")
        await other.publish([message("run:started", n=0)])
        await coming
    await other.publish([message("run:started", n=n) for n in range(1, 4)])
    shared.stop()
    shared.start()
    again = await opened(shared.url, prefix)
    async with aclosing(again.listen(["run:*"], group="g", history=False)) as events:
        found = [event.data["n"] for event in await taken(events, 4)]
    assert found == [0, 1, 2, 3]
    for each in (bus, other, again):
        await each.close()


async def test_an_event_that_is_too_large_for_the_server_is_refused(url: str, prefix: str) -> None:
    bus = await opened(url, prefix)
    sent = [message("run:started"), message("run:failed", text="x" * MOST_BYTES)]
    assert await bus.publish(sent) == ["unroutable", "refused"]
    assert await bus.publish(sent[:1]) == ["unroutable"]
    await bus.close()


async def test_there_is_no_history(url: str, prefix: str) -> None:
    bus = await opened(url, prefix)
    with pytest.raises(ConfigError, match="keeps no history"):
        await bus.history(["*"], 1)
    with pytest.raises(ConfigError, match="keeps no history"):
        await bus.clear(["*"])
    with pytest.raises(ConfigError, match="keeps no history"):
        await anext(bus.listen(["*"], group=None, history=True))
    await bus.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_virtual_host_that_is_not_there_is_a_config_error(shared: RabbitServer) -> None:
    """The library leaves the refused connection open, until it is collected."""
    bus = make_bus(f"amqp://guest:guest@127.0.0.1:{shared.port}/nowhere", load_plugins())
    with pytest.raises(ConfigError, match="refuses user, password, virtual host"):
        await bus.open()
    await bus.close()
    gc.collect()


async def test_an_exchange_of_another_form_is_named(url: str, prefix: str) -> None:
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.declare_exchange(f"{prefix}.events", aio_pika.ExchangeType.FANOUT)
    with pytest.raises(ConfigError, match=r"in another form"):
        await opened(url, prefix)
    await connection.close()


@pytest.mark.parametrize(
    "wrong",
    ["amqp://user:secret@host:port/", "amqp://user:secret@host/a/b", "amqp://user:secret@/"],
)
def test_a_wrong_address_is_named_without_its_password(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"events\.url") as failed:
        make_bus(wrong, load_plugins())
    assert "secret" not in str(failed.value)


def test_a_run_counts_events_that_nobody_subscribed_to(
    bench: Bench, url: str, prefix: str, caplog: Any
) -> None:
    bench.sections["events"] = {"url": url, "prefix": prefix}
    report = bench.train()
    assert report.lost["events_unroutable"] == 60
    assert caplog.text.count("had no subscriber") == 1
    assert "guest:guest" not in caplog.text


async def test_a_server_that_is_stopped_and_started_gets_what_came_meanwhile(
    shared: RabbitServer, prefix: str, tmp_path: Any, monkeypatch: Any
) -> None:
    from agl_events._sender import EventSender

    from tests.plugins.events.conftest import LIMITS, make_event, put

    monkeypatch.setattr("agl_events._sender._FIRST_RETRY_S", 0.1)
    monkeypatch.setattr("agl_events._sender._LONGEST_RETRY_S", 0.5)
    reader = await opened(shared.url, prefix)
    listening = reader.listen(["run:*"], group="g", history=False)
    coming = asyncio.ensure_future(anext(listening))
    await TestRabbitBus()._group_exists(shared.url, prefix, "g")
    plugins = load_plugins()
    bus = partial(make_bus, shared.url, plugins, {"prefix": prefix})
    box = EventSender(tmp_path / "events.db", bus, make_event, LIMITS)
    await asyncio.to_thread(box.open, connect_s=10)
    put(box, n=0)
    assert (await coming).data == {"n": 0}
    shared.stop()
    for number in range(1, 200):
        put(box, n=number)
    with pytest.raises(BusError):
        await anext(listening)
    await reader.close()
    await asyncio.to_thread(shared.start)
    assert await asyncio.to_thread(box.close, within_s=30) == 0
    again = await opened(shared.url, prefix)
    async with aclosing(again.listen(["run:*"], group="g", history=False)) as events:
        seen: set[int] = set()
        while seen < set(range(1, 200)):
            seen.add((await asyncio.wait_for(anext(events), 60)).data["n"])
    await again.close()


@pytest.mark.parametrize("named", ["address", "environment"])
async def test_events_go_over_tls_to_a_server_whose_authority_is_named(
    shared: RabbitServer, prefix: str, named: str, monkeypatch: Any
) -> None:
    authorities = shared.authority.file
    if named == "environment":
        monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    query = f"?cafile={authorities}" if named == "address" else ""
    bus, reader = [await opened(shared.over_tls(query), prefix) for _ in range(2)]
    async with aclosing(reader.listen(["run:*"], group="g", history=False)) as events:
        coming = asyncio.ensure_future(taken(events, 1))
        await TestRabbitBus()._group_exists(shared.url, prefix, "g")
        assert await bus.publish([message("run:started", n=1)]) == ["delivered"]
        assert [event.data for event in await coming] == [{"n": 1}]
    for each in (bus, reader):
        await each.close()


@pytest.mark.parametrize("named", [True, False])
async def test_a_server_of_another_authority_is_refused_in_one_line(
    shared: RabbitServer, tmp_path: Path, named: bool, monkeypatch: Any, caplog: Any
) -> None:
    """The library's own line, which would come at every try of an outage, is left out."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    query = f"?cafile={Authority(tmp_path).file}" if named else ""
    said = await refused(shared.over_tls(query, "secret"), ConfigError, timeout_s=5.0)
    assert said.startswith(f"RabbitMQ at amqps://***@127.0.0.1:{shared.tls_port}/")
    assert "has a certificate that is not trusted (" in said
    assert "by cafile=FILE in events.url or by SSL_CERT_FILE" in said
    assert caplog.text == ""


async def test_a_wrong_password_over_tls_is_not_taken_for_a_wrong_authority(
    shared: RabbitServer,
) -> None:
    url = shared.over_tls(f"?cafile={shared.authority.file}", "secret")
    assert "refuses user, password" in await refused(url, ConfigError, timeout_s=5.0)


async def test_a_server_with_tls_only_and_one_without_are_named(shared: RabbitServer) -> None:
    url = f"amqp://guest:secret@127.0.0.1:{shared.tls_port}/"
    assert "if the server speaks TLS only, write amqps://" in await refused(
        url, BusError, timeout_s=5.0
    )
    url = f"amqps://guest:secret@127.0.0.1:{shared.port}/?cafile={shared.authority.file}"
    assert "if the server speaks no TLS, write amqp://" in await refused(
        url, BusError, timeout_s=5.0
    )


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no certificates") as failed:
        make_bus(f"amqps://me:secret@host/?cafile={tmp_path / 'nowhere.pem'}", load_plugins())
    assert "nowhere.pem" in str(failed.value)
    assert "secret" not in str(failed.value)


@pytest.fixture
def url(shared: RabbitServer) -> str:
    return shared.url
