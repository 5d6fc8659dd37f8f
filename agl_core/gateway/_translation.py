"""Translate between a plugin's dialect and the chat completions that the exchange handles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from agl_core.gateway._chat import FINISH_REASONS, PATH
from agl_core.gateway._chat_answer import Payload
from agl_core.gateway._routing import registered_path
from agl_core.gateway._stream import DONE, ERROR_EVENT, EventParser
from agl_core.gateway._tool_calls import ToolCalls, plain_text
from agl_core.interfaces import AnswerDelta, Dialect, DialectAnswer, Problem, TokenUsage
from agl_core.serving import Translate, asgi
from agl_core.text import decoded

__all__ = ["AnswerReader", "translations"]

_ERROR: Final = 400
_EVENT_STREAM: Final = b"text/event-stream"
_BROKEN: Final = {
    "code": "engine_error",
    "message": "The backend's answer ended without a finish reason",
}


class AnswerReader:
    """Reads the first choice of a chat completion, chunk by chunk, into `AnswerDelta`."""

    def __init__(self) -> None:
        self._calls = ToolCalls()
        self._usage: TokenUsage | None = None
        self._finish: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the answer has a finish reason of a completed answer."""
        return self._finish in FINISH_REASONS

    @property
    def given_up(self) -> dict[str, str]:
        """The error of an answer with any other finish reason; empty if there is none."""
        if self._finish is None or self.finished:
            return {}
        return {"message": f"The backend aborted its answer with finish reason {self._finish!r}"}

    def read(self, chunk: Payload, *, whole: bool = False) -> Iterator[AnswerDelta]:
        """Yield the additions of a chunk or of a whole chat completion."""
        if chunk.usage is not None and (chunk.usage.stated or self._usage is None):
            self._usage = chunk.usage
        known: dict[str, Any] = {"id": chunk.id or "", "usage": self._usage}
        rows = chunk.choices or []
        rows = rows[:1] if whole else [row for row in rows if not row.index]
        if not rows:
            yield AnswerDelta(**known)
        for row in rows:
            self._finish = row.finish_reason or self._finish
            message = row.content(whole=whole)
            if message is None:
                yield AnswerDelta(**known, finish_reason=self._finish)
                continue
            calls = self._calls.add(message.tool_calls or [], whole=whole)
            if message.function_call is not None:
                calls.append(self._calls.add_function(message.function_call))
            yield AnswerDelta(
                **known,
                reasoning=plain_text(message.reasoning_content or message.reasoning or ""),
                content=plain_text(message.content or ""),
                refusal=message.refusal or "",
                transcript=(message.audio and message.audio.transcript) or "",
                tool_calls=calls,
                finish_reason=self._finish,
            )


class _TranslatedSend:
    """An ASGI ``send`` that translates a chat completion into a dialect's answer.

    Answers with an error status are forwarded unchanged.
    """

    def __init__(self, answer: DialectAnswer, send: asgi.Send) -> None:
        self._send = send
        self._answer = answer
        self._reader = AnswerReader()
        self._head: asgi.AsgiMessage | None = None
        """The start message of an answer that is not a stream, held until its body is complete."""
        self._whole: list[bytes] = []
        self._parser: EventParser | None = None
        self._ended = False

    async def __call__(self, message: asgi.AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._parser is not None:
            await self._stream(self._parser, message)
        elif self._head is not None:
            await self._collect(self._head, message)
        else:
            await self._send(message)

    async def _start(self, head: asgi.AsgiMessage) -> None:
        kind = dict(head["headers"]).get(b"content-type", b"")
        if head["status"] >= _ERROR:
            await self._send(head)
        elif kind.startswith(_EVENT_STREAM):
            self._parser = EventParser()
            await self._send(head)
        else:
            self._head = head

    async def _stream(self, parser: EventParser, message: asgi.AsgiMessage) -> None:
        more: bool = message.get("more_body", False)
        events = parser.feed(message.get("body", b""))
        events += [] if more else parser.finish()
        parts = [self._take(event.data, name=event.name) for event in events]
        if not more:
            parts.append(self._end())
        body = b"".join(parts)
        if body or not more:
            await self._send({**message, "body": body})

    def _take(self, data: bytes, *, name: bytes) -> bytes:
        if self._ended:
            return b""
        if data == DONE:
            return self._end()
        try:
            chunk = Payload(data)
        except msgspec.DecodeError as error:
            text = decoded(data)
            unread = f"The backend's stream holds no chunk ({error}): {text[:200]!r}"
            return self._end({"message": text if name == ERROR_EVENT else unread})
        if name == ERROR_EVENT:
            chunk.read_as_error()
        if name == ERROR_EVENT or chunk.error:
            return self._end(_stated(chunk.error))
        return b"".join(map(self._answer.add, self._reader.read(chunk)))

    def _end(self, error: Mapping[str, Any] | None = None) -> bytes:
        """Return the last bytes of the stream: its end or an error; empty when called again."""
        if self._ended:
            return b""
        self._ended = True
        if error is None and self._reader.finished:
            return self._answer.end()
        return self._answer.fail(_BROKEN | self._reader.given_up | dict(error or {}))

    async def _collect(self, head: asgi.AsgiMessage, message: asgi.AsgiMessage) -> None:
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
            for delta in self._reader.read(chunk, whole=True):
                self._answer.add(delta)
        if self._reader.finished:
            self._answer.end()
            body = self._answer.document()
        else:
            text = f"The backend answered no whole chat completion: {raw[:200]!r}"
            text = self._reader.given_up.get("message", text)
            status, body = 502, Problem(502, "engine_error", text, retry=True).body()
        replaced = (b"content-length", b"content-type")
        headers = [(name, value) for name, value in head["headers"] if name not in replaced]
        await asgi.respond(self._send, status, body, headers=[*headers, *asgi.JSON])


def translations(dialects: Mapping[str, Dialect]) -> dict[str, Translate]:
    """Return the translation of each dialect by its path below ``/v1``.

    Args:
        dialects: Dialects by the method and path under which plugins register them.

    Raises:
        PluginError: a name is not ``POST`` and a path, or the path is that of chat completions.
    """
    return {
        registered_path("Dialect", name, taken=f"POST {PATH}", methods=("POST",)): _translating(one)
        for name, one in dialects.items()
    }


def _translating(dialect: Dialect) -> Translate:
    """Return a function that translates a request and wraps ``send`` to translate the answer.

    The function raises `Problem` if the dialect refuses the request.
    """

    def translate(body: bytes, send: asgi.Send) -> tuple[bytes, asgi.Send]:
        chat, answer = dialect(body)
        return chat, _TranslatedSend(answer, send)

    return translate


def _stated(error: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
