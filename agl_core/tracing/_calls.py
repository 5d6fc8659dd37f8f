"""One generation request: its call id, and its LLM span if no integration records one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote

from agl_core import semconv
from agl_core.clocks import new_id
from agl_core.tracing._context import AttemptContext
from agl_core.tracing._recorder import ReadProgress, Recorder
from agl_core.tracing._scopes import close_scope
from agl_core.types import Scope, SpanKind

_RETRY_COUNT: Final = "x-stainless-retry-count"
FIRST_ERROR: Final = 400
_NEVER_LEFT: Final = frozenset({"PoolTimeout", "ConnectTimeout", "ConnectError"})
"""Exceptions of httpx and httpx2 after which nothing was sent."""


class _LastSend(NamedTuple):
    """The previous send of the same task or thread; an SDK retries in the same one."""

    attempt_id: str
    body_hash: int | None
    call_id: str
    span_id: str


_LAST_SEND: ContextVar[_LastSend | None] = ContextVar("agl_last_send", default=None)


class RecordedRequest:
    """A request in flight with an LLM span that the wire recorded."""

    __slots__ = ("_ended", "_recorder", "_span_id", "rerouted")
    until_read: ClassVar = True
    """It ends at the end of the answer's stream, not at its beginning."""

    def __init__(self, recorder: Recorder, span_id: str) -> None:
        self._recorder = recorder
        self._span_id = span_id
        self._ended = False
        self.rerouted = False
        """Whether the program sent it to another address than the gateway's."""

    def reading(self) -> ReadProgress:
        """Return a new counter for the reader of the answer."""
        return self._recorder.reading(self._span_id)

    def end(self, error: BaseException | None, *, status_code: int = 0) -> None:
        """End the span with the answer, its stream or the request; repeated calls do nothing."""
        if self._ended:
            return
        self._ended = True
        _note_failure(self._recorder, self._span_id, error)
        if error is None and status_code >= FIRST_ERROR:
            self._recorder.end(self._span_id, status="error", error=f"HTTP {status_code}")
        else:
            self._recorder.end_with(self._span_id, error)


class ScopedRequest:
    """A request in flight inside a call scope, whose span an integration records."""

    __slots__ = ("_call", "_recorder", "rerouted")
    until_read: ClassVar = False

    def __init__(self, recorder: Recorder, call: Scope) -> None:
        self._recorder = recorder
        self._call = call
        self.rerouted = False

    def reading(self) -> ReadProgress:
        """Return a new counter for the reader of the answer."""
        return self._recorder.reading(self._call.span_id)

    def end(self, error: BaseException | None, *, status_code: int = 0) -> None:
        """Note whether the request failed, so that the next one counts as another try.

        A cancelled request has no further try, and some frameworks do not report the end of its
        call. This method ends the call then; otherwise the next request would count as a try of it.
        """
        self._call.unanswered = error is not None or status_code >= FIRST_ERROR
        _note_failure(self._recorder, self._call.span_id, error)
        if error is not None and not isinstance(error, Exception):
            close_scope(self._call)
            self._recorder.end_with(self._call.span_id, error)


def _note_failure(recorder: Recorder, span_id: str, error: BaseException | None) -> None:
    """Record that the program has no answer, and whether the request never left."""
    if error is None:
        return
    recorder.unread(span_id)
    if type(error).__name__ in _NEVER_LEFT:
        recorder.count(span_id, semconv.AGL_UNSENT)


def call_scope(scope: Scope | None) -> Scope | None:
    """Return the call scope of a send; None for an agent or tool that runs inside a call."""
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
    """Return whether a request is another try of its call.

    SDKs mark their retries. Other programs, such as routers, repeat a failed request, possibly
    changed.
    """
    return call.unanswered or (_same(body_hash, call.body_hash) and _is_retry(request))


def _same(body: int | None, before: int | None) -> bool:
    return body is not None and body == before


def own_span(
    context: AttemptContext, scope: Scope | None, request: Any, *, operation: str
) -> tuple[str, str]:
    """Record the LLM span of a send outside any call scope; an SDK's retry continues the span."""
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
    """Return the scope's agent, else the agent that the request's header or URL names."""
    if scope is not None and scope.agent is not None:
        return scope.agent
    given = request.headers.get(semconv.HEADER_AGENT)
    if given is None:
        _, _, rest = request.url.raw_path.partition(b"/agent/")
        given = rest.partition(b"/")[0].decode("ascii")
    return unquote(given) or None


def operation_of(request: Any) -> str | None:
    """Return OpenTelemetry's operation name of a request; None if it generates nothing."""
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
    """Return the hash of the body; None for a streamed body, which never equals another."""
    try:
        return hash(request.content)
    except RuntimeError:  # RequestNotRead of httpx and httpx2
        return None
