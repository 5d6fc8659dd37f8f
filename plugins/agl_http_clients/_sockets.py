"""Connections to models over WebSockets.

Servers of Realtime sessions, and of Responses over a WebSocket, do not return exact tokens. A
connection to one of them is recorded as an LLM span without a call id: the adapters drop an attempt
in which a trained agent has such a span, and ``agl doctor`` lists them. Two public functions of
``websockets.client.ClientProtocol`` are wrapped, which the synchronous and asynchronous clients of
`websockets` share. Other WebSocket libraries are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from agl_core import semconv
from agl_core.tracing import Patch, Recorder, active, call_scope, guarded, request_scope
from agl_core.types import SpanKind

Function = Callable[..., Any]
Live = Callable[[], bool]
_PATHS: Final = ("/responses", "/realtime", "/live/sessions", "BidiGenerateContent")
"""Endings of the paths of models."""
_NAME: Final = "websocket"


class Sockets:
    """Records an attempt's WebSocket connections to models."""

    def __init__(self) -> None:
        """Start without connections."""
        self._opening = WeakKeyDictionary[Any, tuple[Recorder, str]]()

    def patches(self, library: Any) -> tuple[Patch, Patch]:
        """Return the patches of two functions of ``websockets.client``.

        Raises:
            ConfigError: a function has another signature than the expected one.
        """

        def connecting(original: Function, live: Live) -> Function:
            def connect(protocol: Any) -> Any:
                if live():
                    self._begin(protocol)
                return original(protocol)

            return connect

        def answered(original: Function, live: Live) -> Function:
            del live  # a span that `connect` began must end

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
        if context is None or not uri.path.endswith(_PATHS):
            return
        scope = request_scope(context)
        if scope is not None and not scope.trainable:
            return
        address = f"{'wss' if uri.secure else 'ws'}://{uri.host}:{uri.port}{uri.path}"
        attributes = {semconv.AGL_WEBSOCKET: address}
        call = call_scope(scope)
        if call is not None:
            # The framework's span of the call, which also has no call id.
            context.recorder.update(call.span_id, attributes=attributes)
            return
        span_id = context.recorder.start(
            SpanKind.LLM,
            _NAME,
            parent_id=scope.span_id if scope is not None else None,
            agent=scope.agent if scope is not None else None,
            agent_run_id=scope.agent_run_id if scope is not None else None,
            attributes=attributes,
        )
        self._opening[protocol] = context.recorder, span_id

    @guarded()
    def _end(self, protocol: Any, error: Exception | None) -> None:
        """End the span: the connection is open or was refused. Its messages are not read."""
        opening = self._opening.pop(protocol, None)
        if opening is not None:
            recorder, span_id = opening
            recorder.end_with(span_id, error)
