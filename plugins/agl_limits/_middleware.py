"""Limit the requests to an ASGI application."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Final

from agl_core.serving import asgi
from agl_limits._limiter import Limiter, RateVerdict

_BEARER: Final = "bearer "


def limit_headers(verdict: RateVerdict, *, name: str = "default") -> dict[str, str]:
    """Return the headers that state a limit.

    They are ``RateLimit-Policy`` and ``RateLimit`` of the IETF's draft, the older ``X-RateLimit-*``
    and, if the request was refused, ``Retry-After``. Times are whole seconds, rounded up. `name` is
    that of the limit, a word.
    """
    seconds = math.ceil(verdict.reset_s)
    headers = {
        "ratelimit-policy": f'"{name}";q={verdict.limit};w={verdict.window_s}',
        "ratelimit": f'"{name}";r={verdict.remaining};t={seconds}',
        "x-ratelimit-limit": str(verdict.limit),
        "x-ratelimit-remaining": str(verdict.remaining),
        "x-ratelimit-reset": str(seconds),
    }
    if not verdict.allowed:
        headers["retry-after"] = str(max(1, seconds))
    return headers


class RateLimitMiddleware:
    """Allows so many requests a window for each key, else for each address.

    In applications with Starlette's way of adding it::

        app.add_middleware(RateLimitMiddleware, rate="100/minute")

    A refused request gets 429 with `limit_headers`; answers to allowed ones have them, too.
    """

    def __init__(
        self,
        app: asgi.AsgiApp,
        rate: str = "100/minute",
        *,
        redis: str = "",
        key_header: str = "x-api-key",
        by_address: bool = True,
        exclude: Collection[str] = ("/health", "/metrics", "OPTIONS"),
    ) -> None:
        """Wrap an application.

        Args:
            app: The application.
            rate: See `agl_limits.parse_rate`.
            redis: Address of a Redis in which several processes count together.
            key_header: Header that names the user; a bearer token does where it is missing.
            by_address: Whether requests without a key are counted by the client's address; if not,
                they are not limited.
            exclude: Paths and methods that are not limited.

        Raises:
            ConfigError: the rate or the address of Redis is wrong.
        """
        self._app = app
        self._limiter = Limiter(rate, redis=redis, space="asgi")
        self._rate = rate
        self._key_header = key_header.lower().encode("latin-1")
        self._by_address = by_address
        self._excluded = frozenset(exclude)

    async def __call__(self, scope: asgi.AsgiScope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answer a request."""
        who = self._who(scope)
        if who is None:
            await self._app(scope, receive, send)
            return
        verdict = await self._limiter.ahit(*who)
        headers = [(k.encode(), v.encode()) for k, v in limit_headers(verdict).items()]
        if not verdict.allowed:
            await _refuse(send, headers, self._rate)
            return

        async def send_with_headers(message: asgi.AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _who(self, scope: asgi.AsgiScope) -> tuple[str, str] | None:
        """Return whose request it is; None if it is not limited."""
        if scope["type"] != "http":
            return None
        if scope["method"] in self._excluded or scope["path"] in self._excluded:
            return None
        given = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        token = given.get(b"authorization", "")
        bearer = token[len(_BEARER) :] if token.lower().startswith(_BEARER) else ""
        if key := given.get(self._key_header) or bearer:
            return ("key", key)
        client = scope.get("client")
        return ("address", str(client[0])) if self._by_address and client else None


async def _refuse(send: asgi.Send, headers: list[tuple[bytes, bytes]], rate: str) -> None:
    error = {
        "message": f"Too many requests: {rate} are allowed; send it again after the time in "
        f"Retry-After",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    body = json.dumps({"error": error}).encode()
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": 429, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})
