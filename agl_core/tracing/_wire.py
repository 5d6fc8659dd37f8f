"""Identity headers on model requests, added when the request is sent.

The one place where httpx and httpx2 are touched: their public ``Client.send`` and
``AsyncClient.send``, through which every request goes, each retry of an SDK included. Both are
wrapped while agl is attached and put back when it is detached.

A request is changed only inside an attempt and only on its way to a known gateway, where it is
headed or where it is rerouted (see `elsewhere`):

- it gets the identity headers of the current scope (``x-agl-*``, percent-encoded UTF-8) and the
  attempt's own key, whatever key its client was made with;
- its timeouts are lowered to what is left of the attempt's deadline;
- a generation request gets a call id. In a ``call`` scope the id belongs to that scope's span.
  Elsewhere the request gets an LLM span of its own, which ends with the answer or its stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.interfaces import Integration
from agl_core.text import url_quoted
from agl_core.tracing._calls import (
    FIRST_ERROR,
    Sent,
    Tried,
    call_id,
    call_scope,
    named_agent,
    operation_of,
    own_span,
)
from agl_core.tracing._context import AttemptContext, active, origin_key, strays_here
from agl_core.tracing._elsewhere import asks_model, counted, readdress, reroutes, stray
from agl_core.tracing._guard import report
from agl_core.tracing._other_clients import OtherClients, Sockets
from agl_core.tracing._patch import Patch, Wrap
from agl_core.tracing._scopes import current_scope
from agl_core.tracing._values import describe
from agl_core.types import Scope

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_EVENT_END: Final = re.compile(rb"\n\r?\n")
_CLOSED_LOOP: Final = "Event loop is closed"
"""What a client raises that holds connections of an event loop before this one: it is older than
the run. The request keeps its id, so if it had left it is another try of the same call."""
_SHORTEST_TIMEOUT_S: Final = 0.001
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch
"""Characters that percent-encoding leaves alone (RFC 3986, section 2.3)."""


class Counted(Enum):
    """A model request on its way elsewhere, which has been counted."""

    COUNTED = 1


class Wire:
    """Prepares requests for the attempt that sends them."""

    def __init__(self, integrations: Sequence[Integration]) -> None:
        """Start unattached.

        Args:
            integrations: Those attached at the moment, asked for the identity in this order; the
                sequence is read at every send.
        """
        self._integrations = integrations
        self._patches: list[Patch] = []
        self._others = OtherClients(self.scope)

    def install(self, libraries: Sequence[Any], sockets: Any | None = None) -> None:
        """Wrap the send functions of `libraries` and those of WebSockets, or none of them.

        Args:
            libraries: Each with ``Client.send`` and ``AsyncClient.send``.
            sockets: The module ``websockets.client``, where there is one.

        Raises:
            ConfigError: a library's ``send`` does not have the signature this was written for.
        """
        patches = [patch for library in libraries for patch in patches_of(library, self)]
        if sockets is not None:
            patches += Sockets(self.scope).patches(sockets)
        for patch in patches:
            patch.install()
        self._patches = patches
        self._others.install()

    def remove(self) -> None:
        """Put the original functions back."""
        self._others.remove()
        while self._patches:
            self._patches.pop().remove()

    def prepare(self, client: Any, request: Any) -> Sent | Tried | Counted | None:
        """Mark one request; telemetry, so whatever goes wrong, the request still goes out.

        Returns:
            Where to record the answer, if it is a model's.

        Raises:
            CaptureError: it is a model request that must not go where the program sends it.
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
    ) -> Sent | Tried | Counted | None:
        url = request.url
        if not context.origins or not asks_model(request.method, url.path):
            return None
        scope = self.scope(context)
        if not reroutes(context, scope, str(url)):
            return Counted.COUNTED
        _limit_timeout(client, request, context.seconds_left())
        readdress(request, context)
        sent = self._identify(context, request, scope)
        if sent is not None:
            sent.rerouted = True
        return sent

    def _identify(
        self, context: AttemptContext, request: Any, scope: Scope | None
    ) -> Sent | Tried | None:
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
            return Tried(context.recorder, call)
        headers[semconv.HEADER_CALL], span_id = own_span(context, scope, request, operation=kind)
        return Sent(context.recorder, span_id)

    def scope(self, context: AttemptContext) -> Scope | None:
        """Who speaks at the moment: as the first integration that knows says, else as agl does."""
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


def _stray(request: Any) -> Counted | None:
    url = request.url
    if not asks_model(request.method, url.path):
        return None
    stray(str(url), origin_key(url.host, url.port, url.scheme))
    return Counted.COUNTED


def patches_of(library: Any, wire: Wire) -> tuple[Patch, Patch]:
    """The two functions of one library, each to be wrapped.

    Raises:
        ConfigError: a function does not have the signature this was written for.
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
            if sent is Counted.COUNTED:
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
            if sent is Counted.COUNTED:
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


def _watch(response: Any, sent: Sent | Tried, tap: type[Any]) -> Any:
    """End what was sent now, or with the stream still to be read; the response is the same."""
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
    # Ids and most names: `quote` takes many times as long to leave them as they are.
    if _UNRESERVED(value):
        return value
    return url_quoted(value)


class Direct:
    """Clients of the wire's own, for requests that the program's client cannot bring to the gateway.

    A client made before the run may send through a proxy that cannot reach a gateway on this
    machine, put its own key on every request, or hold connections of an event loop that is closed.
    These clients read no environment and keep no connection open. There is one for threads and one
    for each event loop.
    """

    def __init__(self, library: Any) -> None:
        """Make none yet.

        Args:
            library: httpx or httpx2.
        """
        self._library = library
        self._lock = Lock()
        self._clients: dict[bool, Any] = {}
        self._async_clients = WeakKeyDictionary["AbstractEventLoop", dict[bool, Any]]()

    def client(self, *, secure: bool) -> Any:
        """For requests from a thread; `secure` checks the certificate of an https address."""
        library = self._library
        with self._lock:
            if secure not in self._clients:
                self._clients[secure] = library.Client(
                    transport=library.HTTPTransport(verify=secure, limits=self._limits()),
                    trust_env=False,
                )
            return self._clients[secure]

    def async_client(self, *, secure: bool) -> Any:
        """For requests from the running event loop."""
        from asyncio import get_running_loop  # noqa: PLC0415  its clients have imported it

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
    """The two stream types of a library, which checks for its own base classes.

    Server-sent events are handed on one at a time, however many came at once: a reader that leaves
    has then taken exactly those that it asked for.
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
    """What both have in common."""

    def __init__(self, stream: Any, sent: Sent | Tried, events: bool) -> None:
        self._stream = stream
        self._events = events
        self._reading = sent.reading()
        self._sent = sent if sent.until_read else None

    def _taken(self, chunk: bytes) -> Iterator[bytes]:
        """The pieces in which a chunk is read, each counted when it is."""
        for piece in _pieces(chunk) if self._events else (chunk,):
            self._reading.taken += len(piece)
            yield piece

    def _end(self, error: BaseException | None) -> None:
        if self._sent is not None:
            self._sent.end(error)


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """A chunk cut after every event that ends in it."""
    start = 0
    for end in _EVENT_END.finditer(chunk):
        yield chunk[start : end.end()]
        start = end.end()
    if start < len(chunk):
        yield chunk[start:]
