from __future__ import annotations

import asyncio
import socket
import sys
from types import SimpleNamespace

import pytest

from agl_core.serving.loop import serving_loop
from agl_core.serving.server import GuestServer, bind


def test_a_serving_process_takes_uvloop_where_it_is_installed(monkeypatch):
    made = object()
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=lambda: made))
    assert serving_loop() is made


def test_a_serving_process_does_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = serving_loop()
    assert loop.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    loop.close()


def test_all_who_have_connected_are_taken_at_once():
    """As far as there are handles; libuv takes one connection per handle and turn of the loop."""
    pytest.importorskip("uvloop")

    async def main():
        listener = bind("127.0.0.1", 0)
        server = GuestServer(lambda *_: None)
        await server.start(listener)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(50)]
        for _ in range(5):
            await asyncio.sleep(0)
        taken = len(server.server_state.connections)
        for client in clients:
            client.close()
        await server.stop()
        return taken

    loop = serving_loop()
    assert loop.run_until_complete(main()) == 50
    loop.close()
