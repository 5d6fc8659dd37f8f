"""One try of a call: send it to the backend, then receive, record and forward the answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from agl_core.clocks import wall_ns
from agl_core.errors import EngineError
from agl_core.gateway import _chat as chat
from agl_core.gateway._attempts import ProxiedCall
from agl_core.gateway._capture import ReceivedAnswer
from agl_core.gateway._chat_answer import Payload
from agl_core.gateway._replay import RecordedCall
from agl_core.gateway._routing import Route
from agl_core.gateway._stream import DONE, ERROR_EVENT, Event, EventParser, Halves, render
from agl_core.interfaces import BackendReply, Problem
from agl_core.semconv import HEADER_CALL
from agl_core.serving import asgi, error_text
from agl_core.text import decoded, url_quoted
from agl_core.types import Sampling

_log = logging.getLogger(__name__)

_OK: Final = frozenset(range(200, 300)) - {204, 205}  # these have no body
_ERROR: Final = range(400, 600)
_SPARE_S: Final = 1.0
"""Added to the backend's time limit, so that the gateway's own deadline ends the call first."""
_EVENT_STREAM: Final = "text/event-stream"


class Exchange(msgspec.Struct, eq=False):
    """The state of one try while it runs, and its result."""

    call: ProxiedCall
    route: Route
    capture: bool
    """The call is trained: ask the backend for tokens and remove them from the client's answer."""
    seeded: bool
    answer: ReceivedAnswer
    sampling: Sampling = Sampling()
    status: int = 0
    """The backend's HTTP status; 0 before it answered."""
    error: str = ""
    streamed: bool = False
    complete: bool = False
    """The client was sent the finish reason and the last tokens of every choice."""
    answer_bytes: int = 0
    """Bytes of the body that the client had been sent when the answer became `complete`."""
    delivered: bool = False
    """The client was sent the last byte of the backend's answer, even if that is an error."""
    first_token_ns: int | None = None
    digest: str = ""
    """Digest of the request; empty if attempts of the rollout cannot be replayed."""
    recorded: RecordedCall | None = None
    """The recorded call that is sent in place of a new answer of the backend."""
    _verbatim: bool = False
    _halves: Halves = msgspec.field(default_factory=Halves)

    @property
    def replaces_seed(self) -> bool:
        """Whether the run's seed replaces the client's: the samples of a group must differ."""
        sent = self.call.request.seed is not None
        return sent and self.capture and self.call.attempt.rollout.mode == "train"

    async def run(self, send: asgi.Send) -> None:
        """Send the request to the backend and forward its answer.

        Raises:
            Problem: the backend failed before anything was forwarded.
            EngineError: the answer ended early, after its head was forwarded.
        """
        try:
            await self._run(send)
        except EngineError as error:
            self.error = str(error)
            if self.call.forwarded:
                raise
            raise Problem(502, "engine_error", str(error), retry=True) from error

    async def _run(self, send: asgi.Send) -> None:
        body = self._prepare()
        seconds = max(self.call.attempt.seconds_left(), 0.0) + _SPARE_S
        backend = self.route.backend
        reply = await backend.chat(body, headers=self.call.headers, timeout_s=seconds)
        try:
            self.status = reply.status
            headers = {name.lower(): value for name, value in reply.headers.items()}
            kind = headers.get("content-type") or (
                _EVENT_STREAM if self.call.request.stream else ""
            )
            if self.status not in _OK and self.status not in _ERROR:
                raise EngineError(_no_answer(reply))
            if self.status in _OK and kind.startswith(_EVENT_STREAM):
                await self._stream(reply, self._head(headers, _EVENT_STREAM), send)
            else:
                await self._plain(reply, self._head(headers, kind or "application/json"), send)
        finally:
            await reply.close()

    def _prepare(self) -> bytes:
        request, overrides = self.call.request, self.call.attempt.overrides
        plan = chat.RequestChanges(
            model=self.route.upstream_model,
            capture=self.capture,
            seed=self.call.attempt.seed(self.call) if self.seeded else None,
            replace_seed=self.replaces_seed,
            temperature=overrides.get("temperature"),
            max_tokens=overrides.get("max_tokens"),
        )
        body, self.sampling = request.prepare(plan)
        if self.recorded is not None:
            self.sampling = self.recorded.call.sampling
        asked_for = not self.capture or request.wants.everything
        self._verbatim = asked_for and plan.model == request.model
        return body

    def _head(self, headers: Mapping[str, str], kind: str) -> list[tuple[bytes, bytes]]:
        call_id = url_quoted(self.call.id)
        return asgi.answered(headers, {"content-type": kind, HEADER_CALL: call_id})

    async def _plain(self, reply: BackendReply, head: asgi.RawHeaders, send: asgi.Send) -> None:
        body = b"".join([chunk async for chunk in reply.body()])
        if self.status in _OK:
            body = self._take_whole(body)
        else:
            self.error = f"HTTP {self.status}: {_error_of(body)[:2000]}"
        self.call.forwarded = True
        await asgi.respond(send, self.status, body, headers=head)
        if self.status in _OK:
            self._note_end()
        self.delivered = True

    async def _stream(self, reply: BackendReply, head: asgi.RawHeaders, send: asgi.Send) -> None:
        self.streamed = True
        self.call.forwarded = True
        await asgi.start(send, self.status, head)
        parser = EventParser(keep_raw=self._verbatim)
        async for chunk in reply.body():
            await self._forward(parser.feed(chunk), parser, send)
        await self._forward(parser.finish(), parser, send)
        self._check_end()
        self.error = self.answer.problem
        if not self.answer.ended and not self.error:
            self.error = self.answer.shortfall("stream")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._note_end()
        self.delivered = True

    async def _forward(self, events: list[Event], parser: EventParser, send: asgi.Send) -> None:
        parts: list[bytes] = []
        rest = 0
        try:
            for event in events:
                ended = self.answer.ended
                parts.append(self._take(event))
                rest = rest + len(parts[-1]) if ended else 0
            if self._verbatim:
                parts.append(parser.idle())
                rest += len(parts[-1])
        finally:
            # If an event ends the answer early, the events before it are still sent.
            if data := b"".join(parts):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        # For its client a translated stream ends with `DONE`, not with the finish reason.
        if not self.call.translated:
            self._note_end(rest)
        elif any(event.data == DONE for event in events):
            self._note_end()

    def _note_end(self, rest: int = 0) -> None:
        """Mark the answer as complete if the client has been sent every finish reason.

        Args:
            rest: Number of bytes that the client was sent after the last finish reason.
        """
        if not self.complete and self.answer.ended:
            self.complete = True
            output = self.call.output
            self.answer_bytes = output.count - rest if output is not None else 0

    def _check_end(self) -> None:
        """Check that a stream that has ended had a finish reason.

        Raises:
            EngineError: it had none, and the client was sent no error.
        """
        if self.answer.broken_off and not self.answer.error:
            raise EngineError(self.answer.shortfall("stream"))

    def _take_whole(self, body: bytes) -> bytes:
        """Record a whole answer; return the bytes for the client."""
        try:
            payload = Payload(body)
        except msgspec.DecodeError as error:
            self.error = f"malformed answer: no chat completion ({error}): {body[:200]!r}"
            return body
        self._add(payload, whole=True)
        self.error = self.answer.problem
        if not self.answer.finished:
            self.error = self.error or self.answer.shortfall("answer")
        if self._verbatim:
            return payload.data
        request = self.call.request
        return payload.stripped(request.wants, model=request.model)

    def _add(self, payload: Payload, *, whole: bool = False) -> None:
        try:
            self.answer.add(payload, whole=whole)
        except Exception as error:  # noqa: BLE001  the client gets the answer anyway
            _log.exception("Could not record an answer of call %s", self.call.id)
            self.answer.fault(f"cannot be recorded ({type(error).__name__}: {error})")
        if self.answer.aborted:
            raise EngineError("The backend aborted its answer (finish reason 'abort')")

    def _take(self, event: Event) -> bytes:
        """Record an event; return the bytes for the client."""
        if event.data == DONE:
            self._check_end()
            return event.raw if self._verbatim else render(DONE)
        data = self._halves.join(event.data)
        try:
            chunk = Payload(data)
        except msgspec.DecodeError as error:
            self._take_unreadable(event, error)
            return event.raw if self._verbatim else render(event.data, name=event.name)
        if event.name == ERROR_EVENT:
            chunk.read_as_error()
        self._add(chunk)
        if self.first_token_ns is None and self.answer.started:
            self.first_token_ns = wall_ns()
        if self._verbatim:
            same = chunk.data == event.data
            return event.raw if same else render(chunk.data, name=event.name)
        request = self.call.request
        data = chunk.stripped_chunk(request.wants, model=request.model)
        return render(data, name=event.name) if data else b""

    def _take_unreadable(self, event: Event, error: Exception) -> None:
        text = decoded(event.data)
        if event.name == ERROR_EVENT:
            self.answer.error = self.answer.error or text[:2000]
        else:
            self.answer.fault(f"an event of the stream is no chunk ({error}): {text[:200]!r}")


def _no_answer(reply: BackendReply) -> str:
    location = next((v for k, v in reply.headers.items() if k.lower() == "location"), "")
    if location:
        return (
            f"The backend redirects to {location!r} (HTTP {reply.status}), which is not followed: "
            f"set base_url to the address that answers"
        )
    return f"The backend answered HTTP {reply.status}, which is neither an answer nor an error"


def _error_of(body: bytes) -> str:
    """Return the message in an error body, whatever its format."""
    try:
        return error_text(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decoded(body)
