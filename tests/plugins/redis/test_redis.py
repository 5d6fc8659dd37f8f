"""Redis as an event bus: history, groups, runs and outages, on real servers."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import agl_events
import pytest
import redis
from agl_events import BusEvent
from agl_events._bus import make_bus
from agl_events._event import encode
from agl_testing.plugin_contract import PluginContract
from click.testing import CliRunner

from agl_core.app import load_plugins
from agl_core.cli.group import CliState, cli
from agl_core.errors import ConfigError
from tests.core.app.conftest import Bench
from tests.plugins.events.bus_contract import BusContract, message, opened, taken, until
from tests.plugins.redis.conftest import RedisServer, free_port


class TestPlugin(PluginContract):
    plugin = "agl_redis.plugin"
    frameworks = ("redis",)


class TestRedisBus(BusContract):
    @pytest.fixture
    def url(self, shared: RedisServer) -> str:
        return shared.url

    @pytest.fixture
    def stoppable(self, own: RedisServer) -> RedisServer:
        return own

    @pytest.fixture
    def nowhere(self) -> str:
        return f"redis://user:secret@127.0.0.1:{free_port()}/0"

    @pytest.fixture
    def wrong_password(self, locked: RedisServer) -> str:
        return f"redis://:secret@127.0.0.1:{locked.port}/0"

    async def _listening(self, bus: Any, first: Any, second: Any, prefix: str) -> None:
        client = bus._connected

        async def both_block() -> bool:
            blocked = await client.client_list()
            return sum("xread" in each["cmd"] and "b" in each["flags"] for each in blocked) >= 2

        await until(both_block)

    async def _group_exists(self, url: str, prefix: str, group: str) -> None:
        bus: Any = await opened(url, prefix)

        async def there() -> bool:
            try:
                return bool(await bus._connected.xinfo_groups(f"{prefix}:run:started"))
            except redis.ResponseError:
                return False

        await until(there)
        await bus.close()


async def test_the_newest_events_of_each_channel_are_kept(url: str, prefix: str) -> None:
    bus = await opened(url, prefix, history=100)
    for start in range(0, 1_000, 100):
        await bus.publish([message("run:started", n=n) for n in range(start, start + 100)])
        await bus.publish([message("batch:built", n=start)])
    kept = await bus.history(["run:*"], 10_000)
    assert 100 <= len(kept) <= 300
    assert [event.data["n"] for event in kept] == list(range(1_000 - len(kept), 1_000))
    newest = await bus.history(["*"], 2)
    assert [event.channel for event in newest] == ["run:started", "batch:built"]
    async with aclosing(bus.listen(["batch:*"], group=None, history=True)) as events:
        assert [event.data["n"] for event in await taken(events, 10)] == list(range(0, 1_000, 100))
    assert await bus.clear(["run:*"]) == {"run:started": len(kept)}
    assert await bus.history(["run:*"], 10) == []
    assert len(await bus.history(["*"], 100)) == 10
    await bus.close()


async def test_a_new_group_may_begin_with_the_kept_events(url: str, prefix: str) -> None:
    bus = await opened(url, prefix)
    await bus.publish([message("run:started", n=n) for n in range(3)])
    async with aclosing(bus.listen(["run:*"], group="g", history=True)) as events:
        assert [event.data["n"] for event in await taken(events, 3)] == [0, 1, 2]
    await bus.close()


async def test_an_event_of_a_member_that_died_goes_to_another(
    url: str, prefix: str, monkeypatch: Any
) -> None:
    bus = await opened(url, prefix)
    await bus.publish([message("run:started", n=n) for n in range(3)])
    await bus._connected.xgroup_create(f"{prefix}:run:started", "g", id="0")  # type: ignore[attr-defined]
    await bus._connected.xreadgroup("g", "dead", {f"{prefix}:run:started": ">"}, count=2)  # type: ignore[attr-defined]
    monkeypatch.setattr("agl_redis._bus._ABANDONED_MS", 0)
    async with aclosing(bus.listen(["run:*"], group="g", history=False)) as events:
        found = [event.data["n"] for event in await taken(events, 3)]
    assert sorted(found) == [0, 1, 2]
    await bus.close()


async def test_entries_that_are_no_events_are_left_out(url: str, prefix: str) -> None:
    bus = await opened(url, prefix)
    await bus.publish([message("run:started", n=1)])
    await bus._connected.xadd(f"{prefix}:run:started", {"event": b"\xff no json"})  # type: ignore[attr-defined]
    await bus._connected.xadd(f"{prefix}:run:started", {"other": "1"})  # type: ignore[attr-defined]
    await bus.publish([message("run:started", n=2)])
    assert [event.data["n"] for event in await bus.history(["*"], 10)] == [1, 2]
    async with aclosing(bus.listen(["*"], group="g", history=True)) as events:
        assert [event.data["n"] for event in await taken(events, 2)] == [1, 2]
    await bus.close()


async def test_the_order_of_channels_is_the_servers_and_the_runs_not_the_publishers_clock(
    url: str, prefix: str
) -> None:
    """The clock is set back between each two events, so that later ones have earlier times and ids."""
    channels = ["run:started", "rollout:started", "rollout:finished", "run:finished"]
    bus = await opened(url, prefix)
    client: Any = bus._connected  # type: ignore[attr-defined]
    for number, channel in enumerate(channels, start=1):
        metadata = {"outbox": "a1", "sequence": number}
        event = BusEvent(
            id=f"event_{9 - number}",
            time=f"20{30 - number}-01-01T00:00:00.000000+00:00",
            channel=channel,
            service="tests",
            metadata=metadata,
        )
        await client.sadd(f"{prefix}:channels", channel)
        await client.xadd(f"{prefix}:{channel}", {"event": encode(event, 2**20)[0]}, id="7-1")
    assert [event.channel for event in await bus.history(["*"], 10)] == channels
    assert [event.channel for event in await bus.history(["*"], 2)] == channels[2:]
    for group in (None, "g"):
        async with aclosing(bus.listen(["*"], group=group, history=True)) as events:
            assert [event.channel for event in await taken(events, 4)] == channels
    await bus.close()


async def test_a_server_whose_clock_is_behind_its_stream_keeps_the_order(
    url: str, prefix: str
) -> None:
    """As if it had been set back by a day: entries get the time of the last one, counted on."""
    bus = await opened(url, prefix)
    client: Any = bus._connected  # type: ignore[attr-defined]
    seconds, _ = await client.time()
    ahead = f"{(seconds + 86_400) * 1_000}-0"
    first = message("run:started", n=0)
    await client.sadd(f"{prefix}:channels", "run:started")
    await client.xadd(f"{prefix}:run:started", {"event": first.body}, id=ahead)
    await bus.publish([message("run:started", n=n) for n in range(1, 20)])
    assert [event.data["n"] for event in await bus.history(["*"], 100)] == list(range(20))
    async with aclosing(bus.listen(["*"], group=None, history=True)) as events:
        assert [event.data["n"] for event in await taken(events, 20)] == list(range(20))
    await bus.close()


async def test_an_event_that_the_server_never_takes_is_refused(url: str, prefix: str) -> None:
    bus = await opened(url, prefix)
    await bus._connected.set(f"{prefix}:run:started", "no stream")  # type: ignore[attr-defined]
    sent = [message("run:started"), message("run:failed")]
    assert await bus.publish(sent) == ["refused", "delivered"]
    await bus.close()


async def test_a_server_without_memory_is_tried_again(own: RedisServer, prefix: str) -> None:
    bus = await opened(own.url, prefix)
    await bus._connected.config_set("maxmemory", "1")  # type: ignore[attr-defined]
    with pytest.raises(agl_events.BusError, match="refuses"):
        await bus.publish([message("run:started")])
    await bus._connected.config_set("maxmemory", "0")  # type: ignore[attr-defined]
    assert await bus.publish([message("run:started")]) == ["delivered"]
    await bus.close()


@pytest.mark.parametrize(
    "wrong",
    [
        "redis://user:secret@localhost:port/0",
        "redis://user:secret@localhost:6379/name",
        "redis://user:secret@/0",
        "redis://user:secret@localhost:99999/0",
        "redsi://user:secret@localhost/0",
        "user:secret@localhost",
    ],
)
def test_a_wrong_address_is_named_without_its_password(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"events\.url") as failed:
        make_bus(wrong, load_plugins())
    assert "secret" not in f"{failed.value} {failed.value.__cause__}"


async def test_a_database_that_is_not_there_is_a_config_error(shared: RedisServer) -> None:
    with pytest.raises(ConfigError, match="refuses"):
        await opened(f"redis://127.0.0.1:{shared.port}/99", "agl")


def test_a_run_publishes_each_hook_and_its_loop(bench: Bench, url: str, prefix: str) -> None:
    bench.sections["events"] = {"url": url, "prefix": prefix}
    report = bench.train()
    assert not [cause for cause in report.lost if cause.startswith("events")]

    found = asyncio.run(kept(url, prefix))
    counts = {name: sum(each.channel == name for each in found) for name in agl_events.CHANNELS}
    assert counts == {
        "config:resolved": 1,
        "run:started": 1,
        "rollout:started": 16,
        "rollout:finished": 16,
        "trajectories:built": 16,
        "batch:built": 2,
        "update:applied": 2,
        "resources:published": 3,
        "step:finished": 2,
        "evaluation:finished": 0,
        "run:finished": 1,
        "run:failed": 0,
    }
    assert sorted(each.metadata["sequence"] for each in found) == list(range(1, len(found) + 1))


async def kept(url: str, prefix: str) -> list[agl_events.BusEvent]:
    bus = await opened(url, prefix)
    try:
        return await bus.history(["*"], 10_000)
    finally:
        await bus.close()


KILLED = """\
import os, signal, sys, threading
from functools import partial
from pathlib import Path
from agl_core.app import load_plugins
from agl_events import BusEvent
from agl_events._bus import make_bus
from agl_events._event import encode
from agl_events._sender import EventSender
from tests.plugins.events.conftest import LIMITS, make_event, put
url, prefix, file = sys.argv[1:]
plugins = load_plugins()
bus = partial(make_bus, url, plugins, {"prefix": prefix})
box = EventSender(Path(file), bus, make_event, LIMITS)
box.open(connect_s=5)
for number in range(300):
    put(box, n=number)
print("put", flush=True)
threading.Event().wait(60)
"""


def test_a_process_that_is_killed_delivers_everything_after_a_restart(
    own: RedisServer, prefix: str, tmp_path: Path
) -> None:
    """The server is down when the process is killed; what was on disk comes with the same ids."""
    from agl_events._sender import EventSender

    from tests.plugins.events.conftest import LIMITS, events_in, make_event

    file = tmp_path / "box" / "events.db"
    own.stop()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, own.url, prefix, str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"put\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    ids = [each.message.id for each in events_in(file)]
    own.start()
    plugins = load_plugins()
    bus = partial(make_bus, own.url, plugins, {"prefix": prefix})
    box = EventSender(file, bus, make_event, LIMITS)
    box.open(connect_s=5)
    assert box.close(within_s=10) == 0
    assert [event.id for event in asyncio.run(kept(own.url, prefix))] == ids


def test_a_subscriber_is_a_loop_of_a_few_lines(url: str, prefix: str) -> None:
    asyncio.run(publish(url, prefix, [message("run:started", n=n) for n in range(3)]))
    found = agl_events.subscribe(url, ["run:*"], history=True, prefix=prefix)
    with closing(iter(found)) as events:
        assert [next(events).data["n"] for _ in range(3)] == [0, 1, 2]
    assert not [each for each in threading.enumerate() if each.name == "agl-subscription"]


async def publish(url: str, prefix: str, sent: list[Any]) -> None:
    bus = await opened(url, prefix)
    await bus.publish(sent)
    await bus.close()


async def test_a_handler_that_fails_hurts_only_itself(url: str, prefix: str, caplog: Any) -> None:
    seen: list[int] = []

    def broken(event: agl_events.BusEvent) -> None:
        raise ValueError("no disk")

    async def works(event: agl_events.BusEvent) -> None:
        seen.append(event.data["n"])

    await publish(url, prefix, [message("run:started", n=n) for n in range(3)])
    handlers: dict[str, Callable[..., Any]] = {"run:*": broken, "*": works}
    work = agl_events.handle(url, handlers, group="g", history=True, prefix=prefix)
    handling = asyncio.ensure_future(work)
    await until(lambda: len(seen) == 3)
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    assert seen == [0, 1, 2]
    assert caplog.text.count("broken failed at event event_") == 3


def agl(*words: str, url: str, given: str = "") -> Any:
    state = CliState()
    return CliRunner().invoke(
        cli, ["events", *words], obj=state, env={"AGL_EVENTS_URL": url}, input=given
    )


def test_the_commands_show_and_delete_what_is_kept(url: str, prefix: str) -> None:
    sent = [message("run:started", n=1), message("batch:built", text="\x1b[31m")]
    asyncio.run(publish(url, prefix, sent))
    shown = agl("history", "--prefix", prefix, url=url)
    assert shown.exit_code == 0, shown.output
    first, second = shown.output.splitlines()
    assert "run:started" in first
    assert '{"n":1}' in first
    assert "\x1b" not in second
    assert "batch:built" in second
    tail = agl("tail", "run:*", "--history", "--limit", "1", "--jsonl", "--prefix", prefix, url=url)
    assert tail.exit_code == 0, tail.output
    assert agl_events.decode(tail.output.encode()).id == sent[0].id
    refused = agl("clear", "--prefix", prefix, url=url, given="n\n")
    assert refused.exit_code != 0
    cleared = agl("clear", "run:*", "--yes", "--prefix", prefix, url=url)
    assert cleared.output.splitlines() == ["run:started 1", "1 events deleted"]
    assert agl("history", "run:*", "--prefix", prefix, url=url).output == "no events\n"


def test_a_command_at_a_bus_that_is_down_says_so(prefix: str) -> None:
    shown = agl("history", url=f"redis://user:secret@127.0.0.1:{free_port()}/0")
    assert shown.exit_code != 0
    assert "cannot be reached" in shown.output
    assert "secret" not in shown.output


def test_what_waits_in_an_outbox_is_sent_by_a_command(
    own: RedisServer, bench: Bench, prefix: str, caplog: Any
) -> None:
    bench.sections["events"] = {"url": own.url, "prefix": prefix, "flush_s": 0.1}
    own.stop()
    report = bench.train()
    waiting = report.lost["events_waiting"]
    assert waiting > 50
    assert "agl events send" in caplog.text
    own.start()
    sent = agl("send", str(bench.directory / "bench"), url=own.url)
    assert sent.exit_code == 0, sent.output
    assert sent.output == f"{waiting} events sent: {waiting} delivered\n"
    assert len(asyncio.run(kept(own.url, prefix))) == waiting
    again = agl("send", str(bench.directory / "bench"), url=own.url)
    assert again.output == "0 events sent\n"


@pytest.fixture
def url(shared: RedisServer) -> str:
    return shared.url
