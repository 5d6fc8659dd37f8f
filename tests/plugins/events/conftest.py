"""A bus in this process, and a sender of its own for tests of the outbox."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from agl_events import BusEvent, BusOptions
from agl_events._event import new_event
from agl_events._outbox import EventOutbox, Stored
from agl_events._sender import EventSender, OutboxLimits
from msgspec import Raw

from tests.core.app.conftest import bench
from tests.plugins.events.memory_bus import SERVERS, MemoryBus, Server, server_of

__all__ = ["bench"]

LIMITS = OutboxLimits(events=1_000, size=2**20, event_size=2**14, call_s=10.0)


@pytest.fixture(autouse=True)
def servers() -> Iterator[None]:
    SERVERS.clear()
    yield
    SERVERS.clear()


@pytest.fixture
def server() -> Server:
    return server_of("host")


@pytest.fixture
def sender(tmp_path: Path) -> Callable[..., EventSender]:
    def make(limits: OutboxLimits = LIMITS) -> EventSender:
        options = BusOptions()
        return EventSender(
            tmp_path / "events.db",
            lambda: MemoryBus("memory://host", options),
            make_event,
            limits,
        )

    return make


def make_event(channel: str, time: float, data: bytes, metadata: dict[str, Any]) -> BusEvent:
    return new_event(channel, "tests", time, cast("dict[str, Any]", Raw(data)), metadata)


def put(sender: EventSender, channel: str = "run:started", **data: Any) -> None:
    sender.put(channel, data)


def events_in(file: Path) -> list[Stored]:
    """Return the events that an outbox has on disk, as after a kill."""
    found: list[Stored] = []
    with TemporaryDirectory() as folder:
        for each in file.parent.glob(f"{file.name}*"):
            shutil.copy(each, folder)
        box = EventOutbox.open(Path(folder) / file.name, most=1, most_bytes=1)
        while events := box.oldest(100):
            found += events
            box.remove(events)
        box.close()
    return found
