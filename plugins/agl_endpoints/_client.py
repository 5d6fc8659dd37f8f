"""Requests to other programs: connections, proxies from the environment, errors."""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from io import BytesIO
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import (
    getproxies_environment,
    proxy_bypass_environment,  # pyright: ignore[reportAttributeAccessIssue,reportUnknownVariableType]
)

from agl_core.errors import AglError, EngineError

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from aiohttp.client import _RequestContextManager  # pyright: ignore[reportPrivateUsage]

CONNECT_S: Final = 30.0
"""Time limit for opening a connection to another program."""
IDLE_S: Final = 4.0
"""How long an idle connection is kept; servers close theirs after 5 s (uvicorn) or more."""
_LARGE_BYTES: Final = 2**18
_TRUSTED: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables with the certificates that OpenSSL trusts."""
_SUPPORTED: Final = ("http", "https")
_CHECK: Final = "Check that the server runs and that the address is right"


class HttpClient:
    """Pooled connections to one server, opened by the first request.

    A request raises one of `failures` if no answer was received. `failed` converts it to an error
    with the address and what to check::

        try:
            async with client.request("GET", url) as answer: ...
        except failures() as error:
            raise client.failed(error, url) from error
    """

    def __init__(
        self,
        url: str,
        *,
        error: type[AglError] = EngineError,
        check: str = _CHECK,
        idle_s: float = IDLE_S,
        proxies: bool = True,
    ) -> None:
        """Create a client; requests open the connections.

        Args:
            url: Address of the server, which selects the proxy.
            error: Type of the error that `failed` returns and that an unsupported proxy raises.
            check: Advice to the user if the server cannot be reached.
            idle_s: How long an idle connection is kept.
            proxies: Whether to use the environment's proxy for the address.
        """
        self._url = url
        self._error = error
        self._check = check
        self._idle_s = idle_s
        self._proxies = proxies
        self._session: ClientSession | None = None
        self._proxy: str | None = None

    def request(self, method: str, url: str, **given: Any) -> _RequestContextManager:
        """Start a request of aiohttp, by default without following redirects.

        Raises:
            AglError: the environment has an unsupported proxy; of the client's error type.
        """
        session = self._session or self._open()
        request: dict[str, Any] = {"allow_redirects": False, "proxy": self._proxy, **given}
        return session.request(method, url, **request)

    def failed(self, error: Exception, url: str, *, timeout_s: float | None = None) -> AglError:
        """Return the error for a request without an answer.

        Args:
            error: One of `failures`.
            url: The requested address.
            timeout_s: Time limit of the whole request, which a plain `TimeoutError` exceeded.
        """
        if timeout_s is not None and type(error) is TimeoutError:
            return self._error(f"{self.shown(url)} did not answer within {timeout_s:.1f} s")
        refused = untrusted(error)
        if refused:
            return self._error(f"{self.shown(url)} {refused}")
        return self._error(f"Cannot reach {self.shown(url)}: {reason(error)}. {self.advice()}")

    def shown(self, url: str) -> str:
        """Return an address for messages, with its proxy."""
        return f"{url} through the proxy {_shown(self._proxy)}" if self._proxy else url

    def advice(self) -> str:
        """Return what the user should check; mentions ``NO_PROXY`` if a proxy is used."""
        if self._proxy is None:
            return self._check
        return f"{self._check}, or name its host in NO_PROXY if it is reached without a proxy"

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector  # noqa: PLC0415

        if self._proxies:
            self._proxy = _proxy_for(self._url, error=self._error)
        self._session = ClientSession(
            connector=TCPConnector(
                limit=0,
                limit_per_host=0,
                keepalive_timeout=self._idle_s,
                ssl=_trusting(*map(os.environ.get, _TRUSTED))
                if self._url[:6] == "https:"
                else True,
            ),
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_S),
            read_bufsize=2**20,
            cookie_jar=DummyCookieJar(),  # agents must not share an engine's cookies
        )
        return self._session


@cache
def _trusting(file: str | None, folder: str | None) -> SSLContext:
    """Return the settings of a client that trusts what OpenSSL does, once for each environment."""
    del file, folder  # OpenSSL reads them
    return create_default_context()


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of a request that got no answer or an incomplete one."""
    from aiohttp import ClientError  # noqa: PLC0415

    return (OSError, ClientError)  # a TimeoutError is an OSError


def untrusted(error: Exception) -> str:
    """Return what is wrong with a server's certificate, and what to do; empty if it is no matter."""
    from aiohttp import ClientConnectorCertificateError  # noqa: PLC0415

    if not isinstance(error, ClientConnectorCertificateError):
        return ""
    return (
        f"has a certificate that is not trusted ({error.certificate_error}): give the file of its "
        f"authority by --ca, or in the environment variable SSL_CERT_FILE"
    )


def reason(error: Exception) -> str:
    """Return an error's message, or its type if the message is empty."""
    return str(error) or type(error).__name__


def sendable(body: bytes) -> bytes | BytesIO:
    """Return a large body as a stream, which is sent in chunks and does not delay other calls.

    The result can be sent only once; a retry needs a new one.
    """
    return BytesIO(body) if len(body) > _LARGE_BYTES else body


def is_address(url: str) -> bool:
    """Whether `url` begins with ``http://host`` or ``https://host``."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _SUPPORTED and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # the port is not a number, or too large


def _proxy_for(url: str, *, error: type[AglError] = EngineError) -> str | None:
    """Return the proxy in ``HTTP_PROXY``, ``HTTPS_PROXY`` or ``ALL_PROXY``, or in lower case.

    None if there is none, if ``NO_PROXY`` excludes the host, and for loopback addresses.

    Raises:
        AglError: the proxy has an unsupported type, such as SOCKS; of the type `error`.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_local(host) or proxy_bypass_environment(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in _SUPPORTED:
        raise error(
            f"Cannot reach {url} through the proxy {_shown(proxy)}, which the environment names: "
            f"give an http:// proxy in {parts.scheme.upper()}_PROXY, or name {host!r} in NO_PROXY"
        )
    return proxy


def _shown(proxy: str) -> str:
    """Return a proxy's address without user and password."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
