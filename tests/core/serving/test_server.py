from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from agl_core.errors import ConfigError
from agl_core.serving import GuestServer, bind
from agl_core.serving._server import JoinedWrites


class Socket(asyncio.Transport):
    """Notes what is done with it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.done: list[Any] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("close")
        self.closing = True

    def abort(self) -> None:
        self.done.append("abort")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")


@pytest.fixture(name="socket")
async def fixture_socket() -> Socket:
    return Socket()


async def a_turn() -> None:
    await asyncio.sleep(0)


async def test_what_one_turn_writes_goes_out_in_one_piece_at_its_end(socket: Socket) -> None:
    joined = JoinedWrites(socket)
    joined.write(b"head ")
    joined.write(bytearray(b"body"))
    assert socket.done == []
    await a_turn()
    joined.write(b"next")
    await a_turn()
    assert socket.done == [b"head body", b"next"]


async def test_a_buffer_that_is_changed_later_goes_out_as_it_was(socket: Socket) -> None:
    joined, buffer = JoinedWrites(socket), bytearray(b"one")
    joined.write(buffer)
    buffer[:] = b"two"
    await a_turn()
    assert socket.done == [b"one"]


async def test_much_data_is_not_held_back(socket: Socket) -> None:
    joined, piece = JoinedWrites(socket), bytes(2**15)
    for _ in range(8):
        joined.write(piece)
    assert sum(map(len, socket.done)) >= 6 * len(piece)
    await a_turn()
    assert b"".join(socket.done) == 8 * piece


async def test_closing_sends_the_rest_before_it_closes(socket: Socket) -> None:
    joined = JoinedWrites(socket)
    joined.write(b"rest")
    joined.close()
    await a_turn()
    assert socket.done == [b"rest", "close"]
    assert joined.is_closing()


async def test_breaking_off_sends_nothing_more(socket: Socket) -> None:
    joined = JoinedWrites(socket)
    joined.write(b"rest")
    joined.abort()
    await a_turn()
    assert socket.done == ["abort"]


async def test_nothing_is_written_to_a_connection_that_is_gone(socket: Socket) -> None:
    joined = JoinedWrites(socket)
    joined.write(b"late")
    socket.closing = True
    await a_turn()
    assert socket.done == []


async def test_reading_and_what_is_known_of_the_connection_are_the_sockets(socket: Socket) -> None:
    joined = JoinedWrites(socket)
    joined.pause_reading()
    joined.resume_reading()
    assert socket.done == ["pause", "resume"]
    assert joined.get_extra_info("peername") == ("127.0.0.1", 1)


@pytest.mark.parametrize(("system", "reused"), [("posix", True), ("nt", False)])
def test_a_port_is_never_shared_and_reused_where_that_is_not_sharing(monkeypatch, system, reused):
    monkeypatch.setattr("agl_core.serving._server.os", SimpleNamespace(name=system))
    listener = bind("127.0.0.1", 0)
    with listener:
        assert bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)) is reused
        with pytest.raises(ConfigError, match="Cannot listen on"):
            bind("127.0.0.1", listener.getsockname()[1])


def test_all_who_have_connected_are_taken_at_once():
    """As far as there are handles; libuv takes one connection per handle and turn of the loop."""
    uvloop = pytest.importorskip("uvloop")

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

    loop = uvloop.new_event_loop()
    assert loop.run_until_complete(main()) == 50
    loop.close()
