"""Between a client that speaks OpenAI Responses and the exchange, which speaks chat completions."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from agl_core.gateway.dialects.chat_answer import Payload
from agl_core.gateway.dialects.responses import ResponsesRequest
from agl_core.gateway.dialects.responses_output import Event, ResponseBuilder
from agl_core.gateway.stream import DONE, ERROR_EVENT, EventParser, render
from agl_core.interfaces import Problem
from agl_core.serving import asgi
from agl_core.text import decoded

__all__ = ["ResponsesAnswer", "as_chat"]

_ERROR: Final = 400
_EVENT_STREAM: Final = b"text/event-stream"
_BROKEN: Final = {
    "code": "engine_error",
    "message": "The backend's answer ended without a finish reason",
}


class ResponsesAnswer:
    """An ASGI ``send`` that turns the chat completion sent through it into a response.

    Answers with an error status pass as they are: both dialects say errors in the same form.
    """

    def __init__(self, asked: ResponsesRequest, send: asgi.Send) -> None:
        self._send = send
        self._events: list[bytes] = []
        self._builder = ResponseBuilder(asked.fields, self._tell)
        self._head: asgi.Message | None = None
        """Of a whole answer, until its body is there."""
        self._whole: list[bytes] = []
        self._parser: EventParser | None = None
        self._ended = False

    async def __call__(self, message: asgi.Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._parser is not None:
            await self._stream(self._parser, message)
        elif self._head is not None:
            await self._collect(self._head, message)
        else:
            await self._send(message)

    def _tell(self, event: Event) -> None:
        self._events.append(
            render(msgspec.json.encode(event, enc_hook=str), name=event["type"].encode())
        )

    async def _start(self, head: asgi.Message) -> None:
        kind = dict(head["headers"]).get(b"content-type", b"")
        if head["status"] >= _ERROR:
            await self._send(head)
        elif kind.startswith(_EVENT_STREAM):
            self._parser = EventParser()
            await self._send(head)
        else:
            self._head = head

    async def _stream(self, parser: EventParser, message: asgi.Message) -> None:
        more: bool = message.get("more_body", False)
        events = parser.feed(message.get("body", b""))
        events += [] if more else parser.finish()
        for event in events:
            self._take(event.data, name=event.name)
        if not more:
            self._end()
        body = b"".join(self._events)
        self._events.clear()
        if body or not more:
            await self._send({**message, "body": body})

    def _take(self, data: bytes, *, name: bytes) -> None:
        if self._ended:
            return
        if data == DONE:
            self._end()
            return
        try:
            chunk = Payload(data)
        except msgspec.DecodeError as error:
            text = decoded(data)
            unread = f"The backend's stream holds no chunk ({error}): {text[:200]!r}"
            self._end({"message": text if name == ERROR_EVENT else unread})
            return
        if name == ERROR_EVENT:
            chunk.read_as_error()
        if name == ERROR_EVENT or chunk.error:
            self._end(_told(chunk.error))
        else:
            self._builder.feed(chunk)

    def _end(self, error: dict[str, Any] | None = None) -> None:
        """Once: the answer is whole, or it will not be."""
        if self._ended:
            return
        self._ended = True
        if error is None and self._builder.finished:
            self._builder.end()
        else:
            self._builder.fail(_BROKEN | self._builder.given_up | (error or {}))

    async def _collect(self, head: asgi.Message, message: asgi.Message) -> None:
        self._whole.append(message.get("body", b""))
        if message.get("more_body"):
            return
        raw = b"".join(self._whole)
        status: int = head["status"]
        try:
            chunk = Payload(raw)
        except msgspec.DecodeError:
            chunk = None
        if chunk is not None and chunk.choices and not chunk.error:
            self._builder.feed(chunk, whole=True)
        if self._builder.finished:
            self._builder.end()
            body = msgspec.json.encode(self._builder.response)
        else:
            text = f"The backend answered no whole chat completion: {raw[:200]!r}"
            text = self._builder.given_up.get("message", text)
            status, body = 502, Problem(502, "engine_error", text, retry=True).body()
        replaced = (b"content-length", b"content-type")
        headers = [(name, value) for name, value in head["headers"] if name not in replaced]
        await asgi.respond(self._send, status, body, headers=[*headers, *asgi.JSON])


def as_chat(body: bytes, send: asgi.Send) -> tuple[bytes, asgi.Send]:
    """A Responses request as a chat completion, and where its answer goes to be translated back.

    Raises:
        Problem: 400, see `ResponsesRequest`.
    """
    asked = ResponsesRequest(body)
    return asked.chat, ResponsesAnswer(asked, send)


def _told(error: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
