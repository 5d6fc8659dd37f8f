"""A backend that answers every chat completion with the same bytes, as fast as Python can.

Its answer has the fields of vLLM's with ids and log-probabilities: 400 prompt ids and 80 sampled
tokens. It prints ``{"port": ...}`` once it listens.
"""

from __future__ import annotations

import asyncio
import json
import sys

PROMPT_TOKENS, SAMPLED_TOKENS = 400, 80


def plain_answer() -> bytes:
    """Return one whole answer."""
    tokens = [{"token": f" t{k}", "logprob": -0.01 * k, "bytes": [32, 116]} for k in _sampled()]
    body = {
        "id": "chatcmpl-constant",
        "object": "chat.completion",
        "created": 1,
        "model": "weights",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * SAMPLED_TOKENS},
                "logprobs": {"content": [{**token, "top_logprobs": []} for token in tokens]},
                "token_ids": [1000 + k for k in _sampled()],
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": SAMPLED_TOKENS},
        "prompt_token_ids": list(range(50_000, 50_000 + PROMPT_TOKENS)),
    }
    return _framed("application/json", json.dumps(body).encode())


def streamed_answer() -> bytes:
    """Return one stream with an event per token."""
    return _framed("text/event-stream", b"".join([*map(_event, _sampled()), b"data: [DONE]\n\n"]))


def _event(position: int) -> bytes:
    last = position == SAMPLED_TOKENS - 1
    logprob = {"token": f" t{position}", "logprob": -0.01 * position, "bytes": [32, 116]}
    chunk = {
        "id": "chatcmpl-constant",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "weights",
        "choices": [
            {
                "index": 0,
                "delta": {"content": "word "},
                "logprobs": {"content": [{**logprob, "top_logprobs": []}]},
                "token_ids": [1000 + position],
                "finish_reason": "stop" if last else None,
            }
        ],
    }
    if position == 0:
        chunk["prompt_token_ids"] = list(range(50_000, 50_000 + PROMPT_TOKENS))
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _sampled() -> range:
    return range(SAMPLED_TOKENS)


def _framed(kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, plain: bytes, streamed: bytes) -> None:
        self._plain = plain
        self._streamed = streamed
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            stop = end + 4 + int(length or 0)
            if len(self._buffer) < stop:
                return
            body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
            stream = b'"stream":true' in body.replace(b" ", b"")
            self._transport.write(self._streamed if stream else self._plain)


async def _serve() -> None:
    plain, streamed = plain_answer(), streamed_answer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(plain, streamed), "127.0.0.1", 0, backlog=4096
    )
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
