"""A client that keeps a number of requests in flight over as many connections, on bare sockets.

``load_client.py URL API_KEY IN_FLIGHT SECONDS`` reads one JSON list of header dictionaries, one per
connection, from standard input. It prints ``begin`` and ``end`` around the window, then its
requests and latencies as JSON, and the number of connections that got an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

_WARM_UP_S = 1.0
_LONGEST_WARM_UP_S = 20.0
_PROMPT = "Say what the item costs in one short sentence. " * 20


class Connection(asyncio.Protocol):
    """A connection that sends the next request as soon as an answer is complete."""

    def __init__(self, head: bytes, body: bytes, number: int) -> None:
        self.latencies: list[float] = []
        self.ends: list[float] = []
        self.failures = 0
        self._head = head
        self._body = body
        self._number = number
        self._sent = 0
        self._buffer = b""
        self._open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.failures += self._open

    def close(self) -> None:
        self._open = False
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(self._buffer) >= end + 4 + int(length) and self._open:
            now = time.perf_counter()
            self.ends.append(now)
            self.latencies.append(now - self._began)
            self.failures += b" 200 " not in head[:20]
            self._buffer = b""
            self._ask()

    def _ask(self) -> None:
        self._sent += 1
        self._began = time.perf_counter()
        call = f"x-agl-call: call_{self._number:08x}{self._sent:08x}\r\n\r\n"
        self._transport.write(self._head + call.encode() + self._body)


def _head(url: str, api_key: str, headers: dict[str, str], body: bytes) -> bytes:
    parts = urlsplit(url)
    given = {"authorization": f"Bearer {api_key}", **headers}
    lines = [
        f"POST {parts.path} HTTP/1.1",
        f"host: {parts.netloc}",
        "accept: application/json",
        "content-type: application/json",
        "user-agent: OpenAI/Python",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in given.items()),
    ]
    return ("\r\n".join(lines) + "\r\n").encode()


async def load(options: argparse.Namespace, identities: list[dict[str, str]]) -> dict[str, object]:
    """Measure one window."""
    request = {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "You are a shop assistant."},
            {"role": "user", "content": _PROMPT},
        ],
        "temperature": 1.0,
        "max_tokens": 80,
    }
    body = json.dumps(request).encode()
    loop, parts = asyncio.get_running_loop(), urlsplit(options.url)
    connections: list[Connection] = []
    for number in range(options.in_flight):
        identity = identities[number % len(identities)]
        connection = Connection(_head(options.url, options.api_key, identity, body), body, number)
        await loop.create_connection(lambda c=connection: c, parts.hostname, parts.port)
        connections.append(connection)
    await asyncio.sleep(_WARM_UP_S)
    # The first wave of many requests is answered late and together.
    latest = time.perf_counter() + _LONGEST_WARM_UP_S
    while not all(one.latencies for one in connections) and time.perf_counter() < latest:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    begin = time.perf_counter()
    sys.stdout.write("begin\n")
    sys.stdout.flush()
    await asyncio.sleep(options.seconds)
    sys.stdout.write("end\n")
    sys.stdout.flush()
    end = begin + options.seconds
    for connection in connections:
        connection.close()
    latencies = sorted(
        latency
        for connection in connections
        for at, latency in zip(connection.ends, connection.latencies, strict=True)
        if begin <= at <= end
    )
    count = len(latencies)
    return {
        "requests_per_s": count / options.seconds,
        "p50_ms": 1e3 * latencies[count // 2] if count else None,
        "p99_ms": 1e3 * latencies[int(0.99 * (count - 1))] if count else None,
        "failures": sum(connection.failures for connection in connections),
        "clients_answered": sum(bool(connection.latencies) for connection in connections),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("api_key")
    parser.add_argument("in_flight", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    import uvloop

    found = uvloop.run(load(options, json.load(sys.stdin)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
