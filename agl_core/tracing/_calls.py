"""One generation request: its call id, and its LLM span where no integration records one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote

from agl_core import semconv
from agl_core.tracing._context import AttemptContext
from agl_core.tracing._recorder import Reading, Recorder
from agl_core.tracing._scopes import close_scope
from agl_core.types import Scope, SpanKind
from agl_core.types.ids import new_id

_RETRY_COUNT: Final = "x-stainless-retry-count"
FIRST_ERROR: Final = 400
_NEVER_LEFT: Final = frozenset({"PoolTimeout", "ConnectTimeout", "ConnectError"})
"""Exceptions of either library that say that nothing was sent."""


class _LastSend(NamedTuple):
    """The send before this one in the same task or thread, where an SDK's retries happen."""

    attempt_id: str
    body_hash: int | None
    call_id: str
    span_id: str


_LAST_SEND: ContextVar[_LastSend | None] = ContextVar("agl_last_send", default=None)


class Sent:
    """A request in flight whose LLM span the wire itself recorded."""

    __slots__ = ("_ended", "_recorder", "_span_id", "rerouted")
    until_read: ClassVar = True
    """It ends with the stream of its answer, not when that begins."""

    def __init__(self, recorder: Recorder, span_id: str) -> None:
        self._recorder = recorder
        self._span_id = span_id
        self._ended = False
        self.rerouted = False
        """The program sent it to another address than the gateway's."""

    def reading(self) -> Reading:
        """What the reader of the answer counts in."""
        return self._recorder.reading(self._span_id)

    def end(self, error: BaseException | None, *, status_code: int = 0) -> None:
        """The answer, its stream or the request itself has ended; the first end counts."""
        if self._ended:
            return
        self._ended = True
        _note_failure(self._recorder, self._span_id, error)
        if error is None and status_code >= FIRST_ERROR:
            self._recorder.end(self._span_id, status="error", error=f"HTTP {status_code}")
        else:
            self._recorder.end_with(self._span_id, error)


class Tried:
    """A request in flight that belongs to a call scope, whose span an integration records."""

    __slots__ = ("_call", "_recorder", "rerouted")
    until_read: ClassVar = False

    def __init__(self, recorder: Recorder, call: Scope) -> None:
        self._recorder = recorder
        self._call = call
        self.rerouted = False

    def reading(self) -> Reading:
        """What the reader of the answer counts in."""
        return self._recorder.reading(self._call.span_id)

    def end(self, error: BaseException | None, *, status_code: int = 0) -> None:
        """Nothing was answered; an answer says nothing here.

        Who is cancelled while it waits tries no more, and not every framework says that the call
        has ended then: what is sent next would be taken for another try.
        """
        self._call.unanswered = error is not None or status_code >= FIRST_ERROR
        _note_failure(self._recorder, self._call.span_id, error)
        if error is not None and not isinstance(error, Exception):
            close_scope(self._call)
            self._recorder.end_with(self._call.span_id, error)


def _note_failure(recorder: Recorder, span_id: str, error: BaseException | None) -> None:
    """What `error` kept the program from: the answer, and the gateway from the request."""
    if error is None:
        return
    recorder.unread(span_id)
    if type(error).__name__ in _NEVER_LEFT:
        recorder.count(span_id, semconv.AGL_UNSENT)


def call_scope(scope: Scope | None) -> Scope | None:
    """The call this send belongs to; an agent or tool inside a call speaks for itself."""
    while scope is not None and scope.kind == "operation":
        scope = scope.parent
    return scope if scope is not None and scope.kind == "call" else None


def call_id(recorder: Recorder, call: Scope, request: Any) -> str:
    """Mint the id of a call scope's send, or reuse it for another try of the same call."""
    body_hash = _body_hash(request)
    if call.call_id is not None:
        if _is_next_try(call, body_hash, request):
            call.unanswered = False
            recorder.sent_again(call.span_id)
            return call.call_id
        recorder.capture_error(
            "A second request was sent inside one model call: its tokens cannot be distinguished. "
            "Open one call scope for each request, or none",
            call_id=call.call_id,
        )
    call.call_id = new_id("call")
    call.body_hash = body_hash
    attributes = None if call.trainable else {semconv.AGL_TRAINABLE: False}
    recorder.update(call.span_id, call_id=call.call_id, attributes=attributes)
    return call.call_id


def _is_next_try(call: Scope, body_hash: int | None, request: Any) -> bool:
    """An SDK says so itself; others repeat what failed, perhaps changed, as routers do."""
    return call.unanswered or (_same(body_hash, call.body_hash) and _is_retry(request))


def _same(body: int | None, before: int | None) -> bool:
    return body is not None and body == before


def own_span(
    context: AttemptContext, scope: Scope | None, request: Any, *, operation: str
) -> tuple[str, str]:
    """Record the LLM span of a send outside any call scope; the SDK's retry continues it."""
    body_hash = _body_hash(request)
    last = _LAST_SEND.get()
    if (
        last is not None
        and last.attempt_id == context.attempt.id
        and _same(body_hash, last.body_hash)
        and _is_retry(request)
    ):
        context.recorder.sent_again(last.span_id)
        return last.call_id, last.span_id
    call_id = new_id("call")
    attributes: dict[str, Any] = {semconv.GEN_AI_OPERATION_NAME: operation}
    if scope is not None and not scope.trainable:
        attributes[semconv.AGL_TRAINABLE] = False
    span_id = context.recorder.start(
        SpanKind.LLM,
        operation,
        parent_id=scope.span_id if scope is not None else None,
        agent=named_agent(scope, request),
        agent_run_id=scope.agent_run_id if scope is not None else None,
        call_id=call_id,
        attributes=attributes,
    )
    _LAST_SEND.set(_LastSend(context.attempt.id, body_hash, call_id, span_id))
    return call_id, span_id


def named_agent(scope: Scope | None, request: Any) -> str | None:
    """The scope's agent, else the one that the program put into the request itself."""
    if scope is not None and scope.agent is not None:
        return scope.agent
    given = request.headers.get(semconv.HEADER_AGENT)
    if given is None:
        _, _, rest = request.url.raw_path.partition(b"/agent/")
        given = rest.partition(b"/")[0].decode("ascii")
    return unquote(given) or None


def operation_of(request: Any) -> str | None:
    """OpenTelemetry's name of what the request asks for; None when it generates nothing."""
    if request.method != "POST":
        return None
    path: bytes = request.url.raw_path.partition(b"?")[0]
    if path.endswith(b"/chat/completions"):
        return "chat"
    return semconv.GENERATION_OPERATIONS.get(path.rpartition(b"/")[2].decode("latin-1"))


def _is_retry(request: Any) -> bool:
    count: str = request.headers.get(_RETRY_COUNT, "0")
    return count.isdecimal() and int(count) > 0


def _body_hash(request: Any) -> int | None:
    """Hash of the body; None for one that is streamed, which equals no other."""
    try:
        return hash(request.content)
    except RuntimeError:  # RequestNotRead of either library
        return None
