"""Requests to other programs: their sessions, the environment's proxies, what failures mean."""

from __future__ import annotations

import ipaddress
from io import BytesIO
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
"""How long a connection to another program may take to open."""
IDLE_S: Final = 4.0
"""How long an idle connection is kept: servers drop theirs after five seconds (uvicorn) or more."""
_LARGE_BYTES: Final = 2**18
_SUPPORTED: Final = ("http", "https")
_CHECK: Final = "Check that the server runs and that the address is right"


class HttpClient:
    """Pooled connections to one server, opened by the first request.

    Use it as follows: `failures` are what a request raises where no answer came, and `failed` makes
    of one the error that says which address failed and what to check::

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
        """Describe the server; nothing is sent yet.

        Args:
            url: Of the server; it decides which proxy is used.
            error: What `failed` makes, and what an unsupported proxy raises.
            check: What the user should check where the server is not reached.
            idle_s: How long an idle connection is kept.
            proxies: Whether to use the proxy that the environment names for the address.
        """
        self._url = url
        self._error = error
        self._check = check
        self._idle_s = idle_s
        self._proxies = proxies
        self._session: ClientSession | None = None
        self._proxy: str | None = None

    def request(self, method: str, url: str, **given: Any) -> _RequestContextManager:
        """Aiohttp's request, by default without following redirects.

        Raises:
            AglError: of the client's type: the environment names an unsupported proxy.
        """
        session = self._session or self._open()
        request: dict[str, Any] = {"allow_redirects": False, "proxy": self._proxy, **given}
        return session.request(method, url, **request)

    def failed(self, error: Exception, url: str, *, timeout_s: float | None = None) -> AglError:
        """The error that says that `url` gave no answer, and why.

        Args:
            error: One of `failures`.
            url: As requested.
            timeout_s: The limit of the whole request, which a plain `TimeoutError` passed.
        """
        if timeout_s is not None and type(error) is TimeoutError:
            return self._error(f"{self.shown(url)} did not answer within {timeout_s:.1f} s")
        return self._error(f"Cannot reach {self.shown(url)}: {reason(error)}. {self.advice()}")

    def shown(self, url: str) -> str:
        """An address for messages, with the proxy through which it is reached."""
        return f"{url} through the proxy {_shown(self._proxy)}" if self._proxy else url

    def advice(self) -> str:
        """What to check, and the environment too where a proxy is used."""
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
            self._proxy = proxy_for(self._url, error=self._error)
        self._session = ClientSession(
            connector=TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=self._idle_s),
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_S),
            read_bufsize=2**20,
            cookie_jar=DummyCookieJar(),  # an engine's cookies are no agent's
        )
        return self._session


def failures() -> tuple[type[Exception], ...]:
    """What a request raises where no answer came, or none that is whole."""
    from aiohttp import ClientError  # noqa: PLC0415

    return (OSError, ClientError)  # a TimeoutError is an OSError


def reason(error: Exception) -> str:
    """What an error says; its type where it says nothing."""
    return str(error) or type(error).__name__


def sendable(body: bytes) -> bytes | BytesIO:
    """A large body as something that is sent piece by piece, so that other calls are not held up.

    It can be sent once: ask again to send it again.
    """
    return BytesIO(body) if len(body) > _LARGE_BYTES else body


def error_text(payload: Any) -> str:
    """One line of an error body, whichever of the usual forms it has."""
    if isinstance(payload, dict):
        error: Any = payload.get("error", payload)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if isinstance(error, dict):
            code: Any = error.get("code") or error.get("type") or ""  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            text: Any = error.get("message", error)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return f"{code}: {text}" if code else str(text)  # pyright: ignore[reportUnknownArgumentType]
        return str(error)  # pyright: ignore[reportUnknownArgumentType]
    return str(payload)


def is_address(url: str) -> bool:
    """Whether it is ``http://host`` or ``https://host``, whatever follows."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _SUPPORTED and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # the port is no number, or too large for one


def proxy_for(url: str, *, error: type[AglError] = EngineError) -> str | None:
    """What ``HTTP_PROXY``, ``HTTPS_PROXY`` or ``ALL_PROXY`` say, in either case.

    None where there is none, where ``NO_PROXY`` excludes the host, and for loopback addresses.

    Raises:
        AglError: of the type `error`: the proxy is of an unsupported kind, such as SOCKS.
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
    """A proxy without its user and password."""
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
