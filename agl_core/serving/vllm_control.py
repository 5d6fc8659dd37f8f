"""Changes the weights of a running vLLM server: its control endpoints, as a trainer calls them.

Full weights::

    async with VllmControl("http://127.0.0.1:8000") as control:
        await control.sync_weights("/checkpoints/step-3")

An adapter, under a name of its own for every version::

    await control.load_adapter("writer-v3", "/checkpoints/writer-v3")
    ...                                    # route new calls to the model "writer-v3"
    await control.unload_adapter("writer-v2")

Tested with vLLM 0.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec

from agl_core.errors import ConfigError, EngineError
from agl_core.serving.peer import is_address

if TYPE_CHECKING:
    from aiohttp import ClientSession

_CONNECT_S: Final = 30.0
_ERROR: Final = 400
_NO_KEY: Final = (401, 403)
_NOT_FOUND: Final = 404
_UNKNOWN_PATH: Final = (_NOT_FOUND, 405)
_NO_SUCH_PATH: Final = ("Not Found", "Method Not Allowed")
"""What is said of a path that is not served; of an adapter that is not there, more is."""
_DEV_MODE: Final = "start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
_LORA: Final = (
    "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its "
    "environment"
)


class _Reply(NamedTuple):
    status: int
    answer: Any
    """JSON, or text where it is none."""


@final
class VllmControl:
    """The control endpoints of one vLLM server.

    They lie beside ``/v1`` and are open to whoever reaches the server: vLLM's ``--api-key`` guards
    ``/v1`` alone, so keep the port from everybody but the trainer and the gateway.
    """

    def __init__(self, url: str, api_key: str = "", *, timeout_s: float = 600.0) -> None:
        """Describe the server; nothing is sent yet.

        Args:
            url: ``http://host:port``, or a base URL that ends in ``/v1``.
            api_key: What the server was given as ``--api-key``.
            timeout_s: For one request. Loading weights takes as long as reading them from disk,
                pausing as long as the answers under way.

        Raises:
            ConfigError: `url` is no such address.
        """
        if not is_address(url):
            raise ConfigError(
                f"{url!r} is no address of a vLLM server: it looks like http://host:port"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._opened: ClientSession | None = None

    async def __aenter__(self) -> VllmControl:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent. What is paused stays so."""
        session, self._opened = self._opened, None
        if session is not None:
            await session.close()

    async def sync_weights(self, directory: str) -> None:
        """Serve the weights in a directory from now on: no answer mixes them with older ones.

        Answers under way are finished with the old weights; calls that come meanwhile wait and get
        the new ones. Keep the gateway's door closed too (`Gateway.pause`), so that it knows
        which calls those are. Adapters that were loaded are dropped from the engine by it.

        Args:
            directory: Absolute, as the server sees it: safetensors of the served architecture.

        Raises:
            ConfigError: the path is relative, or the server was started without these endpoints.
            EngineError: the server does not answer or could not load them. It stays paused then,
                since part of its weights may be new: sync again, or restart it.
        """
        _absolute(directory)
        await self.pause()
        try:
            await self.reload_weights(directory)
            await self.reset_prefix_cache()
        except EngineError as error:
            raise EngineError(
                f"{error}. The server stays paused, for its weights may be mixed: sync weights "
                f"that it can load, or restart it"
            ) from error
        await self.resume()

    async def pause(self) -> None:
        """Start no answer from now on; returns when those under way have ended.

        Calls that come are kept until `resume`. vLLM's other ways to pause are not offered: one
        hands agents half an answer as if it were a whole one, the other goes on with half an answer
        of the old weights under the new ones.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: it does not answer.
        """
        await self._post("/pause", needs=_DEV_MODE, query={"mode": "wait"})

    async def resume(self) -> None:
        """Answer again.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: it does not answer.
        """
        await self._post("/resume", needs=_DEV_MODE)

    async def reload_weights(self, directory: str) -> None:
        """Load weights in place of those that are served, in every worker; part of `sync_weights`.

        Raises:
            ConfigError: the path is relative, or the server was started without this endpoint.
            EngineError: the server does not answer or could not load them.
        """
        kwargs = {"weights_path": _absolute(directory)}
        body = {"method": "reload_weights", "kwargs": kwargs}
        await self._post("/collective_rpc", body, needs=_DEV_MODE)

    async def reset_prefix_cache(self) -> None:
        """Forget what was computed of earlier prompts, which belongs to the weights of then.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: the server does not answer, or still answers calls that hold the cache.
        """
        answer = await self._post("/reset_prefix_cache", needs=_DEV_MODE)
        if isinstance(answer, dict) and answer.get("success") is False:  # pyright: ignore[reportUnknownMemberType]
            raise EngineError(
                f"vLLM at {self.url} did not reset its prefix cache: calls under way hold it. "
                f"Pause it first"
            )

    async def load_adapter(self, name: str, directory: str) -> None:
        """Serve an adapter as the model `name`, beside those that are loaded.

        Every version needs a name and a directory of its own: the prefix cache knows adapters by
        both, and under old ones gives new weights what older ones computed.

        Args:
            name: Not loaded yet.
            directory: Absolute, as the server sees it: an adapter in the format of PEFT.

        Raises:
            ConfigError: the path is relative, or the server was started without this endpoint.
            EngineError: the server does not answer, has the name already, or could not load it.
        """
        body = {"lora_name": name, "lora_path": _absolute(directory)}
        await self._post("/v1/load_lora_adapter", body, needs=_LORA)

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no longer; answers under way are finished with it. Idempotent.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: the server does not answer.
        """
        reply = await self._send("/v1/unload_lora_adapter", {"lora_name": name})
        if reply.status != _NOT_FOUND or _no_such_path(reply):
            self._accept("/v1/unload_lora_adapter", reply, needs=_LORA)

    async def _post(
        self, path: str, body: Any = None, *, needs: str, query: Mapping[str, str] | None = None
    ) -> Any:
        """The answer, unless it is an error."""
        reply = await self._send(path, body, query)
        return self._accept(path, reply, needs=needs)

    async def _send(
        self, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> _Reply:
        from aiohttp import ClientError, ClientTimeout  # noqa: PLC0415

        url = self.url + path
        timeout = ClientTimeout(total=self._timeout_s, sock_connect=_CONNECT_S)
        request: dict[str, Any] = {"json": body, "params": query, "timeout": timeout}
        try:
            async with self._session().post(url, allow_redirects=False, **request) as response:
                return _Reply(response.status, _decoded(await response.read()))
        except asyncio.TimeoutError as error:
            raise EngineError(f"{url} did not answer within {self._timeout_s:.1f} s") from error
        except (ClientError, OSError) as error:
            raise EngineError(
                f"Cannot reach {url}: {error or type(error).__name__}. Check that the vLLM server "
                f"runs and that the address is right"
            ) from error

    def _accept(self, path: str, reply: _Reply, *, needs: str) -> Any:
        if reply.status < _ERROR:
            return reply.answer
        url, told = self.url + path, _said(reply.answer)[:2000]
        if _no_such_path(reply):
            raise ConfigError(f"The vLLM server has no {url} (HTTP {reply.status}): {needs}")
        if reply.status in _NO_KEY:
            raise ConfigError(
                f"The vLLM server refuses {url} (HTTP {reply.status}: {told}): give the key of its "
                f"--api-key; if it has none, {needs}"
            )
        raise EngineError(f"{url} failed with HTTP {reply.status}: {told}")

    def _session(self) -> ClientSession:
        if self._opened is None:
            from aiohttp import ClientSession, TCPConnector  # noqa: PLC0415

            # A pooled connection may be dead by the next training step.
            self._opened = ClientSession(
                headers=self._headers, connector=TCPConnector(force_close=True)
            )
        return self._opened


def _absolute(directory: str) -> str:
    if not (PurePosixPath(directory).is_absolute() or PureWindowsPath(directory).is_absolute()):
        raise ConfigError(
            f"Weights for vLLM are in {directory!r}, which is relative: give the absolute path, for "
            f"the server has a folder of its own"
        )
    return directory


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw.decode("utf-8", "replace")


def _said(answer: Any) -> str:
    """The words of an error in any of the forms that vLLM gives it."""
    if isinstance(answer, dict):
        told: Any = answer.get("error") or answer.get("detail") or answer  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return str(told.get("message", told) if isinstance(told, dict) else told)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType,reportUnknownArgumentType]
    return str(answer)


def _no_such_path(reply: _Reply) -> bool:
    """Whether it is the path that the server does not know, not the adapter that it is asked for."""
    if reply.status not in _UNKNOWN_PATH:
        return False
    return isinstance(reply.answer, str) or _said(reply.answer) in _NO_SUCH_PATH
