"""Models asked over a WebSocket, which pass the gateway by: that they were asked is recorded.

Nobody serves Realtime sessions, or Responses over a WebSocket, with exact tokens. A connection to
one of them becomes an LLM span without a call id: the adapters drop an attempt in which a trained
agent has such a span, and ``agl doctor`` tells of all.

Two functions of `websockets` are touched, both public and both of ``ClientProtocol``, which its
synchronous and asynchronous clients share. Other libraries for WebSockets are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from agl_core import semconv
from agl_core.tracing.calls import call_scope
from agl_core.tracing.context import AttemptContext, active
from agl_core.tracing.guard import guarded
from agl_core.tracing.patch import Patch
from agl_core.tracing.recorder import Recorder
from agl_core.types import Scope, SpanKind

_MODELS: Final = ("/responses", "/realtime", "/live/sessions", "BidiGenerateContent")
"""How the paths end under which models are served so."""
_NAME: Final = "websocket"

Live = Callable[[], bool]
Function = Callable[..., Any]


class Sockets:
    """Records which models an attempt connects to."""

    def __init__(self, scope: Callable[[AttemptContext], Scope | None]) -> None:
        """Start with no connection.

        Args:
            scope: Who speaks at the moment.
        """
        self._scope = scope
        self._opening = WeakKeyDictionary[Any, tuple[Recorder, str]]()

    def patches(self, library: Any) -> tuple[Patch, Patch]:
        """The two functions of ``websockets.client``, each to be wrapped.

        Raises:
            ConfigError: a function does not have the signature this was written for.
        """

        def connecting(original: Function, live: Live) -> Function:
            def connect(protocol: Any) -> Any:
                if live():
                    self._begin(protocol)
                return original(protocol)

            return connect

        def answered(original: Function, live: Live) -> Function:
            del live  # what was begun has to end

            def process_response(protocol: Any, response: Any) -> Any:
                try:
                    result = original(protocol, response)
                except Exception as error:
                    self._end(protocol, error)
                    raise
                self._end(protocol, None)
                return result

            return process_response

        owner = library.ClientProtocol
        return (
            Patch(library, owner, "connect", connecting, parameters=()),
            Patch(library, owner, "process_response", answered, parameters=("response",)),
        )

    @guarded()
    def _begin(self, protocol: Any) -> None:
        context, uri = active(), protocol.uri
        if context is None or not uri.path.endswith(_MODELS):
            return
        scope = self._scope(context)
        if scope is not None and not scope.trainable:
            return
        address = f"{'wss' if uri.secure else 'ws'}://{uri.host}:{uri.port}{uri.path}"
        told = {semconv.AGL_WEBSOCKET: address}
        call = call_scope(scope)
        if call is not None:
            # A framework's own span of the call, which lacks its id just so.
            context.recorder.update(call.span_id, attributes=told)
            return
        span_id = context.recorder.start(
            SpanKind.LLM,
            _NAME,
            parent_id=scope.span_id if scope is not None else None,
            agent=scope.agent if scope is not None else None,
            agent_run_id=scope.agent_run_id if scope is not None else None,
            attributes=told,
        )
        self._opening[protocol] = context.recorder, span_id

    @guarded()
    def _end(self, protocol: Any, error: Exception | None) -> None:
        """The connection stands, or was refused; what is said on it nobody reads."""
        opening = self._opening.pop(protocol, None)
        if opening is not None:
            recorder, span_id = opening
            recorder.end_with(span_id, error)
