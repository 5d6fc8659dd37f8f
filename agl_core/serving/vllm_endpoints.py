"""Requests to the control endpoints of a vLLM server, and what its refusals mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from agl_core.errors import ConfigError, EngineError
from agl_core.serving.peer import is_address
from agl_core.serving.proxies import advice, proxy_for, through
from agl_core.text import decoded

if TYPE_CHECKING:
    from aiohttp import ClientSession

DEV_MODE: Final = "start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
LORA: Final = (
    "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its "
    "environment"
)
_CONNECT_S: Final = 30.0
_ERROR: Final = 400
_NO_KEY: Final = (401, 403)
_UNKNOWN_PATH: Final = (404, 405)
_NO_SUCH_PATH: Final = ("Not Found", "Method Not Allowed")
"""What is said of a path that is not served; of an adapter that is not there, more is."""


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    answer: Any
    """JSON, or text where it is none."""

    @property
    def said(self) -> str:
        """The words of an error in any of the forms that vLLM gives it."""
        if isinstance(self.answer, dict):
            told: Any = self.answer.get("error") or self.answer.get("detail") or self.answer  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return str(told.get("message", told) if isinstance(told, dict) else told)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportUnknownArgumentType]
        return str(self.answer)

    @property
    def no_such_path(self) -> bool:
        """The server does not know the path, rather than the adapter that it is asked for."""
        if self.status not in _UNKNOWN_PATH:
            return False
        return isinstance(self.answer, str) or self.said in _NO_SUCH_PATH


class VllmEndpoints:
    """One server, asked over connections that are not kept: training steps are minutes apart."""

    def __init__(self, url: str, api_key: str, *, timeout_s: float) -> None:
        """Describe the server; nothing is sent yet.

        Raises:
            ConfigError: `url` is no address.
        """
        if not is_address(url):
            raise ConfigError(
                f"{url!r} is no address of a vLLM server: it looks like http://host:port"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._opened: ClientSession | None = None
        self._proxy: str | None = None

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._opened = self._opened, None
        if session is not None:
            await session.close()

    async def send(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Reply:
        """Whatever the server answers, an error included.

        Raises:
            EngineError: it does not answer.
        """
        from aiohttp import ClientError, ClientTimeout  # noqa: PLC0415

        url = self.url + path
        timeout = ClientTimeout(total=self._timeout_s, sock_connect=_CONNECT_S)
        request: dict[str, Any] = {"json": body, "params": query, "timeout": timeout}
        try:
            session = self._session()
            request["proxy"] = self._proxy
            sending = session.request(method, url, allow_redirects=False, **request)
            async with sending as response:
                return Reply(response.status, _decoded(await response.read()))
        except TimeoutError as error:
            raise EngineError(
                f"{self._shown(path)} did not answer within {self._timeout_s:.1f} s"
            ) from error
        except (ClientError, OSError) as error:
            check = advice(
                self._proxy, "Check that the vLLM server runs and that the address is right"
            )
            raise EngineError(
                f"Cannot reach {self._shown(path)}: {error or type(error).__name__}. {check}"
            ) from error

    async def post(
        self, path: str, body: Any = None, *, needs: str, query: Mapping[str, str] | None = None
    ) -> Any:
        """The answer to a request that succeeds.

        Args:
            path: Below the server's address.
            body: JSON.
            needs: How a server has to be started to have the path.
            query: Of the URL.

        Raises:
            ConfigError: the server has no such path, or wants a key.
            EngineError: it does not answer, or says that it failed.
        """
        return self.accepted(path, await self.send("POST", path, body, query), needs=needs)

    def accepted(self, path: str, reply: Reply, *, needs: str) -> Any:
        """The answer of a reply; raises as `post` does."""
        if reply.status < _ERROR:
            return reply.answer
        url, told = self._shown(path), reply.said[:2000]
        if reply.no_such_path:
            raise ConfigError(f"The vLLM server has no {url} (HTTP {reply.status}): {needs}")
        if reply.status in _NO_KEY:
            raise ConfigError(
                f"The vLLM server refuses {url} (HTTP {reply.status}: {told}): give the key of its "
                f"--api-key; if it has none, {needs}"
            )
        raise EngineError(f"{url} failed with HTTP {reply.status}: {told}")

    def _shown(self, path: str) -> str:
        return f"{self.url}{path}{through(self._proxy)}"

    def _session(self) -> ClientSession:
        if self._opened is None:
            from aiohttp import ClientSession, TCPConnector  # noqa: PLC0415

            self._proxy = proxy_for(self.url)
            connector = TCPConnector(force_close=True)
            self._opened = ClientSession(headers=self._headers, connector=connector)
        return self._opened


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decoded(raw)
