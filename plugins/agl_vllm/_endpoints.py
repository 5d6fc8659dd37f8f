"""Requests to the control endpoints of a vLLM server, and the meaning of its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from agl_endpoints import CONNECT_S, HttpClient, failures, is_address
from aiohttp import ClientTimeout

from agl_core.errors import ConfigError, EngineError
from agl_core.text import decoded

DEV_MODE: Final = "start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
LORA: Final = (
    "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its "
    "environment"
)
_ERROR: Final = 400
_NO_KEY: Final = (401, 403)
_UNKNOWN_PATH: Final = (404, 405)
_NO_SUCH_PATH: Final = ("Not Found", "Method Not Allowed")
"""Messages for a path that does not exist; the message for a missing adapter is longer."""


class Reply(NamedTuple):
    """A server's answer."""

    status: int
    answer: Any
    """JSON, or text if it is not JSON."""

    @property
    def said(self) -> str:
        """The message of an error in any of vLLM's forms."""
        if isinstance(self.answer, dict):
            error: Any = self.answer.get("error") or self.answer.get("detail") or self.answer  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return str(error.get("message", error) if isinstance(error, dict) else error)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportUnknownArgumentType]
        return str(self.answer)

    @property
    def no_such_path(self) -> bool:
        """Whether the server lacks the path, not only the adapter in the request."""
        if self.status not in _UNKNOWN_PATH:
            return False
        return isinstance(self.answer, str) or self.said in _NO_SUCH_PATH


class VllmEndpoints:
    """The control endpoints of one server."""

    def __init__(self, url: str, api_key: str, *, timeout_s: float) -> None:
        """Describe the server; nothing is sent yet.

        Raises:
            ConfigError: `url` is not an address.
        """
        if not is_address(url):
            raise ConfigError(
                f"{url!r} is no address of a vLLM server: it looks like http://host:port"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        check = "Check that the vLLM server runs and that the address is right"
        self._client = HttpClient(self.url, check=check)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._client.close()

    async def send(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request and return any answer, including an error.

        Raises:
            EngineError: the server does not answer.
        """
        url = self.url + path
        timeout = ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S)
        request: dict[str, Any] = {"headers": self._headers, "json": body, "params": query}
        try:
            async with self._client.request(method, url, timeout=timeout, **request) as response:
                return Reply(response.status, _decoded(await response.read()))
        except failures() as error:
            raise self._client.failed(error, url, timeout_s=self._timeout_s) from error

    async def post(
        self, path: str, body: Any = None, *, needs: str, query: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request and return the answer, which must be a success.

        Args:
            path: Below the server's address.
            body: JSON.
            needs: How a server has to be started to have the path.
            query: Of the URL.

        Raises:
            ConfigError: the server does not have the path, or requires a key.
            EngineError: it does not answer, or reports a failure.
        """
        return self.accepted(path, await self.send("POST", path, body, query), needs=needs)

    def accepted(self, path: str, reply: Reply, *, needs: str) -> Any:
        """Return the answer of a successful reply; raise as `post` does."""
        if reply.status < _ERROR:
            return reply.answer
        url, said = self._client.shown(self.url + path), reply.said[:2000]
        if reply.no_such_path:
            raise ConfigError(f"The vLLM server has no {url} (HTTP {reply.status}): {needs}")
        if reply.status in _NO_KEY:
            raise ConfigError(
                f"The vLLM server refuses {url} (HTTP {reply.status}: {said}): give the key of its "
                f"--api-key; if it has none, {needs}"
            )
        raise EngineError(f"{url} failed with HTTP {reply.status}: {said}")


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decoded(raw)
