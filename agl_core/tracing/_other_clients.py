"""Model requests without identity headers: over other HTTP libraries, and over WebSockets.

Requests over urllib3 (also under requests), urllib.request and aiohttp are counted or refused.
Requests to the gateway pass: their URL names the attempt, or the gateway counts them. One function
of each library is wrapped, as soon as the library is imported.

Servers of Realtime sessions, and of Responses over a WebSocket, do not return exact tokens. A
connection to one of them is recorded as an LLM span without a call id: the adapters drop an attempt
in which a trained agent has such a span, and ``agl doctor`` lists them. Two public functions of
``websockets.client.ClientProtocol`` are wrapped, which the synchronous and asynchronous clients of
`websockets` share. Other WebSocket libraries are not recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing._calls import call_scope
from agl_core.tracing._context import AttemptContext, active, origin_key
from agl_core.tracing._elsewhere import asks_model, counts_already, reroutes, stray
from agl_core.tracing._guard import guarded, report
from agl_core.tracing._patch import ImportWatch, Patch
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._values import describe
from agl_core.types import Scope, SpanKind

_log = logging.getLogger(__name__)

Function = Callable[..., Any]
Live = Callable[[], bool]
_URLLIB3: Final = "urllib3 (also under requests)"
_URLLIB: Final = "urllib.request"
_AIOHTTP: Final = "aiohttp"
_SOCKET_PATHS: Final = ("/responses", "/realtime", "/live/sessions", "BidiGenerateContent")
"""Endings of the paths of models over a WebSocket."""
_SOCKET: Final = "websocket"


class OtherClients:
    """Checks the requests of these libraries while installed."""

    def __init__(self, scope: Callable[[AttemptContext], Scope | None]) -> None:
        """Start uninstalled.

        Args:
            scope: Returns the current scope.
        """
        self._scope = scope
        self._patches: list[Patch] = []
        self._watch = ImportWatch(
            {
                "urllib3.connectionpool": partial(self._patch, self._of_urllib3),
                "urllib.request": partial(self._patch, self._of_urllib),
                "aiohttp.client": partial(self._patch, self._of_aiohttp),
            }
        )

    def install(self) -> None:
        self._watch.install()

    def remove(self) -> None:
        """Put the original functions back."""
        self._watch.remove()
        while self._patches:
            self._patches.pop().remove()

    def _patch(self, make: Callable[[Any], Patch], module: ModuleType) -> None:
        try:
            patch = make(module)
            patch.install()
        except Exception as error:  # noqa: BLE001  runs inside an import of the program's
            name, why = module.__name__, describe(error)
            _log.warning("Model requests over %s are not counted: %s", name, why)
            return
        self._patches.append(patch)

    def _of_urllib3(self, module: Any) -> Patch:
        def wrap(original: Function, live: Live) -> Function:
            def urlopen(pool: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
                if live():
                    self._check(partial(_urllib3_post, pool, method, url), _URLLIB3)
                return original(pool, method, url, *args, **options)

            return urlopen

        owner = module.HTTPConnectionPool
        return Patch(module, owner, "urlopen", wrap, parameters=("method", "url"))

    def _of_urllib(self, module: Any) -> Patch:
        def wrap(original: Function, live: Live) -> Function:
            def open_(opener: Any, fullurl: Any, data: Any = None, *args: Any, **more: Any) -> Any:
                if live():
                    self._check(partial(_urllib_post, fullurl, data), _URLLIB)
                return original(opener, fullurl, data, *args, **more)

            return open_

        owner = module.OpenerDirector
        return Patch(module, owner, "open", wrap, parameters=("fullurl", "data"))

    def _of_aiohttp(self, module: Any) -> Patch:
        def wrap(original: Function, live: Live) -> Function:
            def request(session: Any, method: str, str_or_url: Any, **options: Any) -> Any:
                if live() and active() is not None:
                    self._check(partial(_aiohttp_post, session, method, str_or_url), _AIOHTTP)
                return original(session, method, str_or_url, **options)

            return request

        owner = module.ClientSession
        return Patch(module, owner, "_request", wrap, parameters=("method", "str_or_url"))

    def _check(self, posted: Callable[[], str | None], library: str) -> None:
        """Count one POST if it is a model request to another address.

        Args:
            posted: Returns the URL of a POST, None for other requests.
            library: The library that sends it.

        Raises:
            CaptureError: the request must not be sent.
        """
        try:
            try:
                url = posted()
                parts = urlsplit(url or "")
                port = parts.port
            except ValueError:  # not a URL: the library raises its own error
                return
            if url is None or not asks_model("POST", parts.path) or counts_already():
                return
            origin = origin_key(parts.hostname or "", port, parts.scheme)
            context = active()
            if context is None:
                stray(url, origin)
            elif context.origins and origin not in context.origins:
                reroutes(context, self._scope(context), url, library=library)
        except CaptureError:
            raise
        except Exception as error:  # noqa: BLE001  telemetry never raises into user code
            report(f"A request went out uncounted: {describe(error)}. Please report this")


def _urllib3_post(pool: Any, method: str, url: str) -> str | None:
    """Return the URL of a POST; a pool gets only the path, or for a proxy the whole URL."""
    if method.upper() != "POST":
        return None
    if not url.startswith("/"):
        return url
    host = f"[{pool.host}]" if ":" in pool.host else pool.host
    return f"{pool.scheme}://{host}:{pool.port}{url}"


def _urllib_post(given: Any, data: Any) -> str | None:
    if isinstance(given, str):
        return given if data is not None else None
    stated = getattr(given, "method", None)
    method = "POST" if data is not None and stated is None else given.get_method()
    return given.full_url if method == "POST" else None


def _aiohttp_post(session: Any, method: str, given: Any) -> str | None:
    """Return the URL of a POST, with the session's base URL if it has one."""
    if method.upper() != "POST":
        return None
    build = getattr(session, "_build_url", None)
    return str(build(given) if build is not None else given)


class Sockets:
    """Records an attempt's WebSocket connections to models."""

    def __init__(self, scope: Callable[[AttemptContext], Scope | None]) -> None:
        """Start without connections.

        Args:
            scope: Returns the current scope.
        """
        self._scope = scope
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
        if context is None or not uri.path.endswith(_SOCKET_PATHS):
            return
        scope = self._scope(context)
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
            _SOCKET,
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
