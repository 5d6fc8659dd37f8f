"""Identity headers on model requests, added when the request is sent.

Only this module wraps httpx and httpx2: their public ``Client.send`` and ``AsyncClient.send``,
which every request passes, including each retry of an SDK. Both are wrapped while agl is attached
and restored when it is detached.

A request is changed only inside an attempt and only if it is sent or rerouted to a known gateway
(see `_elsewhere`):

- it gets the identity headers of the current scope (``x-agl-*``, percent-encoded UTF-8) and the
  attempt's key, which replaces the client's key;
- its timeouts are lowered to the time left until the attempt's deadline;
- a generation request gets a call id. In a ``call`` scope the id is set on that scope's span.
  Otherwise the request gets its own LLM span, which ends with the answer or its stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.interfaces import Integration
from agl_core.text import url_quoted
from agl_core.tracing._calls import (
    FIRST_ERROR,
    RecordedRequest,
    ScopedRequest,
    call_id,
    call_scope,
    named_agent,
    operation_of,
    own_span,
)
from agl_core.tracing._context import AttemptContext, active, origin_key, strays_here
from agl_core.tracing._elsewhere import (
    asks_model,
    counted,
    counts_already,
    readdress,
    reroutes,
    stray,
)
from agl_core.tracing._scopes import current_scope
from agl_core.tracing._values import describe
from agl_core.tracing._wrapping import Patch, Wrap, report
from agl_core.types import Scope

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_EVENT_END: Final = re.compile(rb"\n\r?\n")
_CLOSED_LOOP: Final = "Event loop is closed"
"""Message of the error that a client raises if its connections belong to an earlier event loop. The
request keeps its call id when it is sent again, so if it was sent it counts as another try."""
_SHORTEST_TIMEOUT_S: Final = 0.001
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch
"""Characters that percent-encoding leaves alone (RFC 3986, section 2.3)."""


class CountedRequest(Enum):
    """The result of `Wire.prepare` for a counted model request to another address."""

    COUNTED = 1


class Wire:
    """Prepares requests for the attempt that sends them."""

    def __init__(self, integrations: Sequence[Integration]) -> None:
        """Start unattached.

        Args:
            integrations: The attached integrations, in the order in which `scope` queries them;
                the sequence is read at every send.
        """
        self._integrations = integrations
        self._patches: list[Patch] = []

    def install(self, libraries: Sequence[Any]) -> None:
        """Wrap the send functions of `libraries`; after an error, none.

        Args:
            libraries: Each has ``Client.send`` and ``AsyncClient.send``.

        Raises:
            ConfigError: a library's ``send`` has another signature than the expected one.
        """
        patches = [patch for library in libraries for patch in patches_of(library, self)]
        for patch in patches:
            patch.install()
        self._patches = patches

    def remove(self) -> None:
        """Restore the original functions."""
        while self._patches:
            self._patches.pop().remove()

    def prepare(
        self, client: Any, request: Any
    ) -> RecordedRequest | ScopedRequest | CountedRequest | None:
        """Add identity, deadline and call id to a request; it is sent even if that fails.

        Returns:
            The object that records the answer, for a model request.

        Raises:
            CaptureError: a model request must not be sent to the program's address.
        """
        context = active()
        try:
            if context is None:
                return _stray(request) if strays_here() is not None else None
            url = request.url
            if origin_key(url.host, url.port, url.scheme) in context.origins:
                _limit_timeout(client, request, context.seconds_left())
                return self._identify(context, request, self.scope(context))
            return self._elsewhere(context, client, request)
        except CaptureError:
            raise
        except Exception as error:  # noqa: BLE001  telemetry never raises into user code
            report(
                f"A request went out without its identity: {describe(error)}. Please report this"
            )
            return None

    def _elsewhere(
        self, context: AttemptContext, client: Any, request: Any
    ) -> RecordedRequest | ScopedRequest | CountedRequest | None:
        url = request.url
        if not context.origins or not asks_model(request.method, url.path):
            return None
        scope = self.scope(context)
        if not reroutes(context, scope, str(url)):
            return CountedRequest.COUNTED
        _limit_timeout(client, request, context.seconds_left())
        readdress(request, context)
        sent = self._identify(context, request, scope)
        if sent is not None:
            sent.rerouted = True
        return sent

    def check(self, posted: Callable[[], str | None], library: str) -> None:
        """Decide what becomes of a request; see `agl_core.tracing.check_request`."""
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
                reroutes(context, self.scope(context), url, library=library)
        except CaptureError:
            raise
        except Exception as error:  # noqa: BLE001  telemetry never raises into user code
            report(f"A request went out uncounted: {describe(error)}. Please report this")

    def _identify(
        self, context: AttemptContext, request: Any, scope: Scope | None
    ) -> RecordedRequest | ScopedRequest | None:
        headers = request.headers
        headers[semconv.HEADER_ROLLOUT] = _encode(context.rollout.id)
        headers[semconv.HEADER_ATTEMPT] = _encode(context.attempt.id)
        if context.llm.api_key:
            headers["Authorization"] = f"Bearer {context.llm.api_key}"
        if scope is not None:
            if scope.agent is not None:
                headers[semconv.HEADER_AGENT] = _encode(scope.agent)
            if scope.agent_run_id is not None:
                headers[semconv.HEADER_AGENT_RUN] = _encode(scope.agent_run_id)
            if not scope.trainable:
                headers[semconv.HEADER_TRAINABLE] = "0"
        kind = operation_of(request)
        if kind is None:
            return None
        alias = context.aliases.at_call(named_agent(scope, request) or "")
        if alias:
            headers[semconv.HEADER_ALIAS] = _encode(alias)
        call = call_scope(scope)
        if call is not None:
            headers[semconv.HEADER_CALL] = call_id(context.recorder, call, request)
            return ScopedRequest(context.recorder, call)
        headers[semconv.HEADER_CALL], span_id = own_span(context, scope, request, operation=kind)
        return RecordedRequest(context.recorder, span_id)

    def scope(self, context: AttemptContext) -> Scope | None:
        """Return the current scope, from the first integration that has one, else from agl-core."""
        for integration in self._integrations:
            try:
                scope = integration.identity()
            except Exception as error:  # noqa: BLE001  telemetry never raises into user code
                context.recorder.capture_error(
                    f"identity() of integration {integration.name!r} raised {describe(error)}: "
                    f"its agent is unknown. Fix the integration, or detach it",
                    framework=integration.name,
                )
                continue
            if scope is not None:
                return scope
        return current_scope()


def _stray(request: Any) -> CountedRequest | None:
    url = request.url
    if not asks_model(request.method, url.path):
        return None
    stray(str(url), origin_key(url.host, url.port, url.scheme))
    return CountedRequest.COUNTED


def patches_of(library: Any, wire: Wire) -> tuple[Patch, Patch]:
    """Return the patches of ``send`` of one library's two clients.

    Raises:
        ConfigError: a function has another signature than the expected one.
    """
    tap, async_tap = taps(library)
    direct = Direct(library)
    return (
        Patch(library, library.Client, "send", _sends(wire, direct, tap)),
        Patch(library, library.AsyncClient, "send", _sends_async(wire, direct, async_tap)),
    )


def _sends(wire: Wire, direct: Direct, tap: type[Any]) -> Wrap:
    def wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        def send(client: Any, request: Any, **options: Any) -> Any:
            sent = wire.prepare(client, request) if live() else None
            if sent is None:
                return original(client, request, **options)
            if sent is CountedRequest.COUNTED:
                with counted():
                    return original(client, request, **options)
            if sent.rerouted:
                client = direct.client(secure=request.url.scheme == "https")
                options = {"stream": options.get("stream", False)}
            try:
                response = original(client, request, **options)
            except BaseException as error:
                sent.end(error)
                raise
            return _watch(response, sent, tap)

        return send

    return wrap


def _sends_async(wire: Wire, direct: Direct, tap: type[Any]) -> Wrap:
    def wrap(original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        async def send(client: Any, request: Any, **options: Any) -> Any:
            sent = wire.prepare(client, request) if live() else None
            if sent is None:
                return await original(client, request, **options)
            if sent is CountedRequest.COUNTED:
                with counted():
                    return await original(client, request, **options)
            if sent.rerouted:
                client = direct.async_client(secure=request.url.scheme == "https")
                options = {"stream": options.get("stream", False)}
            try:
                try:
                    response = await original(client, request, **options)
                except RuntimeError as error:
                    if sent.rerouted or str(error) != _CLOSED_LOOP:
                        raise
                    own = direct.async_client(secure=request.url.scheme == "https")
                    response = await original(own, request, stream=options.get("stream", False))
            except BaseException as error:
                sent.end(error)
                raise
            return _watch(response, sent, tap)

        return send

    return wrap


def _watch(response: Any, sent: RecordedRequest | ScopedRequest, tap: type[Any]) -> Any:
    """End the request's record now, or at the end of the stream; return the same response."""
    if response.is_closed or response.status_code >= FIRST_ERROR:
        sent.end(None, status_code=response.status_code)
    else:
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = tap(response.stream, sent, events)
    return response


def _limit_timeout(client: Any, request: Any, left_s: float) -> None:
    left_s = max(left_s, _SHORTEST_TIMEOUT_S)
    timeout = request.extensions.get("timeout")
    if timeout is None:
        timeout = client.timeout.as_dict()
    lowered = {
        phase: left_s if limit is None or limit > left_s else limit
        for phase, limit in timeout.items()
    }
    request.extensions = {**request.extensions, "timeout": lowered}


@lru_cache(maxsize=1024)
def _encode(value: str) -> str:
    # Ids and most names need no encoding; `quote` takes many times as long to return them.
    if _UNRESERVED(value):
        return value
    return url_quoted(value)


class Direct:
    """HTTP clients for requests that the program's client cannot send to the gateway.

    A client created before the run may use a proxy that cannot reach a local gateway, set its own
    key on every request, or have connections of a closed event loop. These clients ignore the
    environment and keep no connection open. Threads share one client; each event loop has its own.
    """

    def __init__(self, library: Any) -> None:
        """Set the library; clients are created on first use.

        Args:
            library: httpx or httpx2.
        """
        self._library = library
        self._lock = Lock()
        self._clients: dict[bool, Any] = {}
        self._async_clients = WeakKeyDictionary["AbstractEventLoop", dict[bool, Any]]()

    def client(self, *, secure: bool) -> Any:
        """Return the client for threads; `secure` checks the certificate of an https address."""
        library = self._library
        with self._lock:
            if secure not in self._clients:
                self._clients[secure] = library.Client(
                    transport=library.HTTPTransport(verify=secure, limits=self._limits()),
                    trust_env=False,
                )
            return self._clients[secure]

    def async_client(self, *, secure: bool) -> Any:
        """Return the client of the running event loop."""
        from asyncio import get_running_loop  # noqa: PLC0415  async programs have imported it

        try:
            loop = get_running_loop()
        except RuntimeError:  # trio
            return self._new_async_client(secure=secure)
        with self._lock:
            clients = self._async_clients.setdefault(loop, {})
            if secure not in clients:
                clients[secure] = self._new_async_client(secure=secure)
            return clients[secure]

    def _new_async_client(self, *, secure: bool) -> Any:
        library = self._library
        return library.AsyncClient(
            transport=library.AsyncHTTPTransport(verify=secure, limits=self._limits()),
            trust_env=False,
        )

    def _limits(self) -> Any:
        return self._library.Limits(max_connections=None, max_keepalive_connections=0)


def taps(library: Any) -> tuple[type[Any], type[Any]]:
    """Return a library's two stream types; the library requires its own base classes.

    Server-sent events are yielded one at a time, even if several arrive together, so that the count
    of a reader that stops early includes only the events that it read.
    """

    class Tap(_Tap, library.SyncByteStream):
        def __iter__(self) -> Any:
            try:
                for chunk in self._stream:
                    yield from self._taken(chunk)
                self._reading.ended = True
            except BaseException as error:
                self._end(error)
                raise

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._end(None)

    class AsyncTap(_Tap, library.AsyncByteStream):
        async def __aiter__(self) -> Any:
            try:
                async for chunk in self._stream:
                    for piece in self._taken(chunk):
                        yield piece
                self._reading.ended = True
            except BaseException as error:
                self._end(error)
                raise

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._end(None)

    return Tap, AsyncTap


class _Tap:
    """Base class of the two stream types."""

    def __init__(self, stream: Any, sent: RecordedRequest | ScopedRequest, events: bool) -> None:
        self._stream = stream
        self._events = events
        self._reading = sent.reading()
        self._sent = sent if sent.until_read else None

    def _taken(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the pieces of a chunk and count each as it is read."""
        for piece in _pieces(chunk) if self._events else (chunk,):
            self._reading.taken += len(piece)
            yield piece

    def _end(self, error: BaseException | None) -> None:
        if self._sent is not None:
            self._sent.end(error)


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """Split a chunk after every event that ends in it."""
    start = 0
    for end in _EVENT_END.finditer(chunk):
        yield chunk[start : end.end()]
        start = end.end()
    if start < len(chunk):
        yield chunk[start:]
