"""Checks of model requests by plugins."""

from __future__ import annotations

import pytest

from agl_core.gateway import GatewayServer
from agl_core.store import MemoryStore


class Refusing:
    """An admission that cannot be closed."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def admit(self, identity, *, key, address, policy):
        del identity, key, address, policy

    async def close(self) -> None:
        self.events.append("closed")
        raise ConnectionError("gone")


async def test_records_are_written_although_an_admission_cannot_be_closed(monkeypatch) -> None:
    events: list[str] = []
    store = MemoryStore()
    await store.open()
    gateway = GatewayServer(store, admissions=[Refusing(events)])
    await gateway.start()
    stop = gateway._recording.stop

    async def written() -> None:
        events.append("written")
        await stop()

    monkeypatch.setattr(gateway._recording, "stop", written)
    with pytest.raises(ConnectionError, match="gone"):
        await gateway.stop()
    await store.close()
    assert events == ["written", "closed"]
