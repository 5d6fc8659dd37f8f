"""Clients of the wire's own, for requests that the program's client cannot bring to the gateway.

A client made before the run may send through a proxy that cannot reach a gateway on this machine,
put its own key on every request, or hold connections of an event loop that is closed. These clients
read no environment and keep no connection open.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Direct:
    """Clients of one library, for threads and for each event loop; see `client` for `secure`."""

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
