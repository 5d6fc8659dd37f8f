"""A bus in this process, and a sender of its own for tests of the outbox."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agl_events import BusOptions
from agl_events._event import new_event
from agl_events._sender import EventSender, OutboxLimits

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
            tmp_path / "events.db", lambda: MemoryBus("memory://host", options), limits
        )

    return make


def put(sender: EventSender, channel: str = "run:started", **data: Any) -> None:
    sender.put(lambda metadata: new_event(channel, "tests", data, metadata))
