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
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, final

import msgspec

from agl_core.errors import ConfigError, EngineError
from agl_vllm._endpoints import DEV_MODE, LORA, VllmEndpoints

_NOT_FOUND: Final = 404
_LARGEST_HEADER: Final = 100_000_000
"""Bytes, by the format's own rule."""
_HEADS: Final = ("lm_head", "embed_out", "output_layer")
"""How models call an output head of their own."""


class _Device(msgspec.Struct):
    device: str = ""


class _Settings(msgspec.Struct):
    device_config: _Device = msgspec.field(default_factory=_Device)


class _ServerInfo(msgspec.Struct):
    vllm_config: _Settings


class _Checksums(msgspec.Struct):
    checksums: dict[str, str]
    """By the name of the tensor, after the rank of its worker."""


@final
class VllmControl:
    """The control endpoints of one vLLM server.

    They are beside ``/v1`` and open to every client that reaches the server: vLLM's ``--api-key``
    protects ``/v1`` alone. Let only the trainer and the gateway reach the port.
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
        self._endpoints = VllmEndpoints(url, api_key, timeout_s=timeout_s)
        self._own_head: bool | None = None
        """Whether a checkpoint needs a head: of a server on a CPU, once it was asked."""

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._endpoints.url

    async def __aenter__(self) -> VllmControl:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent. What is paused stays so."""
        await self._endpoints.close()

    async def sync_weights(self, directory: str) -> None:
        """Serve the weights in a directory from now on: no answer mixes them with older ones.

        Answers under way are finished with the old weights; calls that come meanwhile wait and get
        the new ones. Pause the gateway too (`Gateway.pause`), so that it knows which
        calls those are. Adapters stay, upon the new weights.

        Args:
            directory: Absolute, as the server sees it: safetensors of the served architecture.

        Raises:
            ConfigError: the path is relative, the server was started without these endpoints, or
                it could change a part of its weights only.
            EngineError: the server does not answer or could not load them. It stays paused then,
                since part of its weights may be new: sync again, or restart it.
        """
        _absolute(directory)
        await self._refuse_old_head(directory)
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
        returns half an answer as if it were a whole one, the other continues half an answer of the
        old weights with the new ones.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: it does not answer.
        """
        await self._endpoints.post("/pause", needs=DEV_MODE, query={"mode": "wait"})

    async def resume(self) -> None:
        """Answer again.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: it does not answer.
        """
        await self._endpoints.post("/resume", needs=DEV_MODE)

    async def reload_weights(self, directory: str) -> None:
        """Load weights in place of those that are served, in every worker; part of `sync_weights`.

        Raises:
            ConfigError: the path is relative, or the server was started without this endpoint.
            EngineError: the server does not answer or could not load them.
        """
        kwargs = {"weights_path": _absolute(directory)}
        body = {"method": "reload_weights", "kwargs": kwargs}
        await self._endpoints.post("/collective_rpc", body, needs=DEV_MODE)

    async def reset_prefix_cache(self) -> None:
        """Forget what was computed of earlier prompts, which belongs to the weights of then.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: the server does not answer, or still answers calls that hold the cache.
        """
        answer = await self._endpoints.post("/reset_prefix_cache", needs=DEV_MODE)
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
        await self._endpoints.post("/v1/load_lora_adapter", body, needs=LORA)

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no longer; answers under way are finished with it. Idempotent.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: the server does not answer.
        """
        path = "/v1/unload_lora_adapter"
        reply = await self._endpoints.send("POST", path, {"lora_name": name})
        if reply.status != _NOT_FOUND or reply.no_such_path:
            self._endpoints.accepted(path, reply, needs=LORA)

    async def _refuse_old_head(self, directory: str) -> None:
        """Make sure that a reload changes all weights.

        On a CPU, vLLM 0.32 computes with a packed copy of the output head. Where the head is the
        embeddings, reloading those leaves the copy as it is: new weights below an old head. So does
        a directory without a head for a server that has one.

        Raises:
            ConfigError: so it would be here.
        """
        if self._own_head is None:
            self._own_head = await self._has_own_head()
        if self._own_head:
            names = await asyncio.to_thread(_tensor_names, directory)
            if names and not _names_head(names):
                raise ConfigError(
                    f"The weights in {directory} have no lm_head.weight, but the model at "
                    f"{self.url} does: its output head would stay old. Write it into them too"
                )

    async def _has_own_head(self) -> bool:
        query = {"config_format": "json"}
        reply = await self._endpoints.send("GET", "/server_info", query=query)
        if _device(reply.answer) != "cpu":
            return False
        body = {"action": "checksum"}
        found = await self._endpoints.post("/weight_checker", body, needs=DEV_MODE)
        if not _names_head(msgspec.convert(found, _Checksums).checksums):
            raise ConfigError(
                f"The model at {self.url} has tied embeddings, and vLLM on a CPU would continue with "
                f"the old ones as its output head. Start it with a copy of the model whose "
                f"config.json says tie_word_embeddings = false and whose weights have an "
                f"lm_head.weight, and write every checkpoint so"
            )
        return True


def _absolute(directory: str) -> str:
    if not (PurePosixPath(directory).is_absolute() or PureWindowsPath(directory).is_absolute()):
        raise ConfigError(
            f"Weights for vLLM are in {directory!r}, which is relative: give the absolute path, for "
            f"the server has a folder of its own"
        )
    return directory


def _device(answer: Any) -> str:
    """What the server computes on; empty where it does not say."""
    try:
        return msgspec.convert(answer, _ServerInfo).vllm_config.device_config.device
    except msgspec.ValidationError:
        return ""


def _names_head(names: Iterable[str]) -> bool:
    return any(head in name for name in names for head in _HEADS)


def _tensor_names(directory: str) -> set[str]:
    """From the headers of the safetensors files; empty where they cannot be read from here."""
    names = set[str]()
    try:
        for file in Path(directory).glob("*.safetensors"):
            with file.open("rb") as opened:
                size = int.from_bytes(opened.read(8), "little")
                if size <= _LARGEST_HEADER:
                    names.update(
                        msgspec.json.decode(opened.read(size), type=dict[str, msgspec.Raw])
                    )
    except (OSError, msgspec.DecodeError):
        return set()
    return names
