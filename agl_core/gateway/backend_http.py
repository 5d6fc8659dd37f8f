"""A backend behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from agl_core.errors import EngineError
from agl_core.gateway.http1 import Client, Connection

_CONNECT_S: Final = 30.0
_IDLE_S: Final = 4.0
"""Seconds an idle connection is kept: less than the five after which uvicorn, and so vLLM, drops
it."""


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


_models = msgspec.json.Decoder(_ModelList)


class HttpReply:
    """An answer as it arrives."""

    def __init__(self, client: Client, connection: Connection, base_url: str) -> None:
        self._client = client
        self._connection = connection
        self._base_url = base_url
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    async def body(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives.

        Raises:
            EngineError: it broke off.
        """
        try:
            async for piece in self._connection.body():
                yield piece
        except (asyncio.TimeoutError, OSError) as error:
            raise EngineError(
                f"Answer of {self._base_url} broke off: {error or type(error).__name__}"
            ) from error

    async def close(self) -> None:
        """Close the connection unless the body was read to its end."""
        self._client.release(self._connection)


class HttpBackend:
    """Sends chat completions to an endpoint over pooled connections, as many as are needed."""

    def __init__(self, base_url: str, api_key: str = "", model: str = "") -> None:
        """Describe the endpoint; connections are opened by the first request.

        Args:
            base_url: Ends in ``/v1``.
            api_key: Bearer token; none is sent when empty.
            model: The endpoint's name for the weights, which the gateway puts into requests.
        """
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._opened: Client | None = None

    async def chat(self, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> HttpReply:
        """Send one request body as it stands.

        Raises:
            EngineError: the endpoint cannot be reached or did not answer in time.
        """
        url = self.base_url + "/chat/completions"
        try:
            client = self._client()
            connection = await client.request(
                "POST",
                "/chat/completions",
                headers={**headers, **self._headers},
                body=body,
                timeout_s=timeout_s,
            )
        except asyncio.TimeoutError as error:
            raise EngineError(f"{url} did not answer within {timeout_s:.1f} s") from error
        except (OSError, ValueError) as error:
            raise EngineError(
                f"Cannot reach {url}: {error or type(error).__name__}. Check that the server runs "
                f"and that base_url is right"
            ) from error
        return HttpReply(client, connection, self.base_url)

    async def max_model_len(self) -> int | None:
        """Longest prompt plus answer in tokens, where the endpoint's ``/models`` tells."""
        rows = await self._models()
        return next((row.max_model_len for row in rows if row.id == self.model), None)

    async def models(self) -> list[str]:
        """Names of the models that the endpoint's ``/models`` lists; empty where it does not."""
        return [row.id for row in await self._models()]

    async def _models(self) -> list[_Model]:
        try:
            client = self._client()
            connection = await client.request(
                "GET", "/models", headers=self._headers, timeout_s=_CONNECT_S
            )
            try:
                data = b"".join([piece async for piece in connection.body()])
            finally:
                client.release(connection)
            return _models.decode(data).data
        except (asyncio.TimeoutError, OSError, ValueError):
            return []

    async def close(self) -> None:
        """Close all connections; idempotent."""
        client, self._opened = self._opened, None
        if client is not None:
            client.close()

    def _client(self) -> Client:
        if self._opened is None:
            self._opened = Client(self.base_url, connect_s=_CONNECT_S, idle_s=_IDLE_S)
        return self._opened
