"""What stands before every page: who may ask, and the headers that limit what a page may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from agl_core.serving import bearer_of, equal_keys

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
_Receive = Callable[[], Awaitable[_Message]]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
COOKIE: Final = "agl_dashboard"
_READS: Final = ("GET", "HEAD")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """ASGI around the application.

    With a key, a request needs it: in the address once (``?key=``), then in a cookie, or as a bearer
    token. Without one, only addresses of loopback are answered, so that another site's name that leads
    here reads nothing. Changes are taken from pages of the dashboard alone, and only if it writes.
    """

    def __init__(self, app: Any, *, key: str = "", write: bool = False) -> None:
        """Wrap an application.

        Args:
            app: The application.
            key: The key; empty for loopback alone.
            write: Whether changes are taken.
        """
        self._app = app
        self._write = write
        self._key = key

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: _Message) -> None:
            if message["type"] == "http.response.start":
                named = {name for name, _ in message["headers"]}
                added = [each for each in _HEADERS if each[0] not in named]
                if b"cache-control" not in named:
                    added.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        headers = dict(scope["headers"])
        if not self._key and not _is_loopback(headers.get(b"host", b"")):
            await _answer(guarded, 403, "This dashboard answers to localhost only")
        elif self._key and await self._asks_for_key(scope, headers, guarded):
            return
        elif scope["method"] not in _READS and (refused := self._refused(headers)):
            await _answer(guarded, 403, refused)
        else:
            await self._app(scope, receive, guarded)

    def _refused(self, headers: dict[bytes, bytes]) -> str:
        """Return why a change is not taken; empty if it is."""
        if not self._write:
            return "This dashboard changes nothing: start it with agl dashboard --write"
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        host = headers.get(b"host", b"").decode("latin-1").lower()
        site = headers.get(b"sec-fetch-site", b"same-origin")
        if urlsplit(origin).netloc != host or site != b"same-origin":
            return (
                f"Changes are taken from pages of this dashboard alone: the header Origin is "
                f"{origin or 'missing'}, not http://{host}"
            )
        return ""

    async def _asks_for_key(self, scope: Any, headers: dict[bytes, bytes], send: _Send) -> bool:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("key", "")
        if given and equal_keys(given, self._key):
            rest = urlencode([each for each in query if each[0] != "key"])
            path = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
            cookie = f"{COOKIE}={self._key}; HttpOnly; SameSite=Strict; Path=/"
            moved = [(b"location", path.encode()), (b"set-cookie", cookie.encode())]
            await _answer(send, 303, "", moved)
            return True
        if equal_keys(bearer_of(scope["headers"]) or _cookie(headers), self._key):
            return False
        await _answer(send, 401, "Open the address that agl dashboard printed: it has the key")
        return True


def _cookie(headers: dict[bytes, bytes]) -> str:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _is_loopback(host: bytes) -> bool:
    name = host.decode("latin-1").lower()
    name = name.rpartition(":")[0] if not name.endswith("]") and ":" in name else name
    return name in _LOOPBACK


async def _answer(
    send: _Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = text.encode()
    head = [(b"content-type", b"text/plain; charset=utf-8"), *(headers or [])]
    head.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
