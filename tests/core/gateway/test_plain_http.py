"""Plain HTTP against servers that write exactly these bytes."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import EngineError
from agl_core.gateway.backend_http import HttpBackend
from agl_core.gateway.plain_http import Connection, ConnectionLostError, PlainHttp

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nX-A: 2\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\ntrailer: t\r\n\r\n"
)


@asynccontextmanager
async def served(handle: Handler, **options: Any) -> AsyncIterator[PlainHttp]:
    """A client of a server that treats every connection with `handle`."""
    handling: list[asyncio.Task[None]] = []

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.append(task)
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = PlainHttp(
        f"http://127.0.0.1:{port}/v1", **{"connect_s": 5.0, "idle_s": 5.0, **options}
    )
    try:
        yield client
    finally:
        client.close()
        server.close()
        await asyncio.gather(*handling)
        await server.wait_closed()


def answers(*wire: bytes, close: bool = False) -> Handler:
    """Write the pieces, one after the other, for each request of a connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in wire:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    return handle


async def ask(client: PlainHttp, *, timeout_s: float = 5.0) -> Connection:
    return await client.post("/x", b"", headers={"a": "é"}, timeout_s=timeout_s)


async def read(connection: Connection) -> bytes:
    try:
        return b"".join([piece async for piece in connection.body()])
    finally:
        await connection.close()


async def test_a_request_is_written_once_and_whole() -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"body"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with served(handle) as client:
        connection = await client.post("/x", b"body", headers={"a": "é"}, timeout_s=5.0)
        assert (connection.status, await read(connection)) == (204, b"")
        head = seen[0].decode("latin-1").split("\r\n")
        assert head[0] == "POST /v1/x HTTP/1.1"
        assert head[1].startswith("host: 127.0.0.1:")
        assert head[2:] == ["a: é", "content-length: 4", "", "body"]


@given(size=st.integers(1, len(CHUNKED)))
def test_a_chunked_answer_cut_anywhere(size: int) -> None:
    async def run() -> None:
        pieces = [CHUNKED[k : k + size] for k in range(0, len(CHUNKED), size)]
        async with served(answers(*pieces)) as client:
            for _ in range(2):
                connection = await ask(client)
                assert connection.status == 200
                assert connection.headers["x-a"] == "1, 2"
                assert "link" not in connection.headers
                assert await read(connection) == b"hello world"

    asyncio.run(run())


async def test_an_answer_without_length_ends_with_its_connection() -> None:
    wire = b"HTTP/1.1 200 OK\r\n\r\nall of it"
    async with served(answers(wire, close=True)) as client:
        assert await read(await ask(client)) == b"all of it"


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
async def test_an_answer_that_stops_short_is_no_whole_one(wire: bytes) -> None:
    async with served(answers(wire, close=True)) as client:
        connection = await ask(client)
        with pytest.raises(EngineError, match=r"broke off: .*closed"):
            await read(connection)


@pytest.mark.parametrize("wire", [b"SSH-2.0-x\r\n", b"HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n!"])
async def test_an_answer_that_is_no_http(wire: bytes) -> None:
    async with served(answers(wire, close=True)) as client:
        with pytest.raises(ConnectionLostError):
            await ask(client)


async def test_connections_are_used_again_and_no_more_are_opened_than_needed() -> None:
    opened = 0
    plain = answers(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await plain(reader, writer)

    async with served(handle) as client:
        for _ in range(3):
            both = await asyncio.gather(ask(client), ask(client))
            assert [await read(each) for each in both] == [b"ok", b"ok"]
        assert opened == 2


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK", b"HTTP/1.1 200 OK\r\nconnection: close"])
async def test_a_connection_that_the_server_gives_up_is_not_used_again(head: bytes) -> None:
    async with served(answers(head + b"\r\ncontent-length: 2\r\n\r\nok")) as client:
        first, second = await ask(client), None
        assert await read(first) == b"ok"
        second = await ask(client)
        assert second is not first
        assert await read(second) == b"ok"


async def test_a_connection_is_closed_unless_its_answer_was_read() -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        assert await reader.read() == b""
        left.set()

    async with served(handle) as client:
        connection = await ask(client)
        await connection.close()
        await connection.close()
        await asyncio.wait_for(left.wait(), 5.0)


async def test_idle_connections_are_not_kept_for_ever() -> None:
    wire = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with served(answers(wire), idle_s=0.0) as client:
        first = await ask(client)
        await read(first)
        assert await ask(client) is not first


async def test_the_deadline_holds_for_the_body_too() -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await reader.read()
        left.set()

    async with served(handle) as client:
        connection = await ask(client, timeout_s=0.05)
        with pytest.raises(EngineError, match="broke off"):
            await read(connection)
        await asyncio.wait_for(left.wait(), 5.0)


async def test_a_server_faster_than_its_reader_is_made_to_wait() -> None:
    size, written = 64 * 2**20, asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(64):
            writer.write(bytes(2**20))
            await writer.drain()
        written.set()
        await reader.read()

    async with served(handle) as client:
        connection = await ask(client)
        pieces = connection.body()
        got = len(await pieces.__anext__())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(written.wait(), 0.2)
        async for piece in pieces:
            got += len(piece)
        assert got == size
        assert written.is_set()
        await connection.close()


@pytest.mark.parametrize("wbits", [zlib.MAX_WBITS, 16 + zlib.MAX_WBITS])
async def test_an_answer_that_is_compressed_unasked(wbits: int) -> None:
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(b"all of it") + packer.flush()
    name = b"gzip" if wbits > zlib.MAX_WBITS else b"deflate"
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n"
    wire = head % (name, len(packed)) + packed
    async with served(answers(wire[:-4], wire[-4:])) as client:
        assert await read(await ask(client)) == b"all of it"


async def test_one_that_stops_waiting_closes_the_connection() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        left.set()

    async with served(handle) as client:
        waiting = asyncio.create_task(ask(client))
        await asyncio.wait_for(asked.wait(), 5.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(left.wait(), 5.0)


@pytest.mark.parametrize("header", [{"a": "1\r\nb: 2"}, {"a\n": "1"}, {"a": "\u20ac"}])
async def test_a_header_that_cannot_be_sent(header: dict[str, str]) -> None:
    async with served(answers()) as client:
        with pytest.raises(ValueError, match=r"line break|latin-1"):
            await client.post("/x", b"", headers=header, timeout_s=5.0)


@pytest.mark.parametrize("url", ["http:///v1", "http://host:port/v1", "nonsense", "http://[/v1"])
async def test_an_address_that_is_none(url: str) -> None:
    backend = HttpBackend(url)
    with pytest.raises(EngineError, match="Cannot reach"):
        await backend.chat(b"{}", headers={}, timeout_s=1.0)
    await backend.close()


async def test_an_address_with_tls_is_spoken_to_in_tls() -> None:
    hello = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello.set_result(await reader.read(3))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    backend = HttpBackend(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    with pytest.raises(EngineError):
        await backend.chat(b"{}", headers={}, timeout_s=5.0)
    assert (await hello)[:2] == b"\x16\x03"
    await backend.close()
    server.close()
    await server.wait_closed()
