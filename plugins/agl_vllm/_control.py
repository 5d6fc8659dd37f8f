"""Control of a running vLLM server's weights by a trainer, through its control endpoints.

Full weights::

    async with VllmControl("http://127.0.0.1:8000") as control:
        await control.sync_weights("/checkpoints/step-3")

An adapter, with a separate name for every version::

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
"""Most bytes of a safetensors header, by the format's rule."""
_HEADS: Final = ("lm_head", "embed_out", "output_layer")
"""Names that models give to a separate output head."""


class _Device(msgspec.Struct):
    device: str = ""


class _Settings(msgspec.Struct):
    device_config: _Device = msgspec.field(default_factory=_Device)


class _ServerInfo(msgspec.Struct):
    vllm_config: _Settings


class _Checksums(msgspec.Struct):
    checksums: dict[str, str]
    """Checksum by the name of the tensor, which follows its worker's rank."""


@final
class VllmControl:
    """The control endpoints of one vLLM server.

    They are outside ``/v1`` and open to every client that reaches the server: vLLM's ``--api-key``
    protects only ``/v1``. Let only the trainer and the gateway reach the port.
    """

    def __init__(self, url: str, api_key: str = "", *, timeout_s: float = 600.0) -> None:
        """Describe the server; nothing is sent yet.

        Args:
            url: ``http://host:port``, or a base URL that ends in ``/v1``.
            api_key: The server's ``--api-key``.
            timeout_s: For one request. Loading weights takes as long as reading them from disk;
                pausing takes as long as the current answers.

        Raises:
            ConfigError: `url` is not such an address.
        """
        self._endpoints = VllmEndpoints(url, api_key, timeout_s=timeout_s)
        self._own_head: bool | None = None
        """Whether a checkpoint needs a head, for a server on a CPU; None before the first check."""

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._endpoints.url

    async def __aenter__(self) -> VllmControl:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent. A paused server stays paused."""
        await self._endpoints.close()

    async def sync_weights(self, directory: str) -> None:
        """Replace the served weights by those in a directory; no answer mixes old and new ones.

        Current answers finish with the old weights; calls that arrive meanwhile wait and get the
        new ones. Pause the gateway too (`Gateway.pause`), so that it knows which calls those are.
        Adapters stay loaded, on top of the new weights.

        Args:
            directory: Absolute, as the server sees it: safetensors of the served architecture.

        Raises:
            ConfigError: the path is relative, the server was started without these endpoints, or
                it could only change a part of its weights.
            EngineError: the server does not answer or could not load them. It then stays paused,
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
        """Start no more answers; return when the current ones have ended.

        Calls that arrive wait until `resume`. vLLM's other modes of pausing are not offered: one
        returns half an answer as a complete one, the other continues half an answer of the old
        weights with the new ones.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: it does not answer.
        """
        await self._endpoints.post("/pause", needs=DEV_MODE, query={"mode": "wait"})

    async def resume(self) -> None:
        """Serve requests again after `pause`.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: it does not answer.
        """
        await self._endpoints.post("/resume", needs=DEV_MODE)

    async def reload_weights(self, directory: str) -> None:
        """Replace the served weights in every worker; part of `sync_weights`.

        Raises:
            ConfigError: the path is relative, or the server was started without this endpoint.
            EngineError: the server does not answer or could not load them.
        """
        kwargs = {"weights_path": _absolute(directory)}
        body = {"method": "reload_weights", "kwargs": kwargs}
        await self._endpoints.post("/collective_rpc", body, needs=DEV_MODE)

    async def reset_prefix_cache(self) -> None:
        """Drop the cached prefixes of earlier prompts, which the old weights computed.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: the server does not answer, or current answers still use the cache.
        """
        answer = await self._endpoints.post("/reset_prefix_cache", needs=DEV_MODE)
        if isinstance(answer, dict) and answer.get("success") is False:  # pyright: ignore[reportUnknownMemberType]
            raise EngineError(
                f"vLLM at {self.url} did not reset its prefix cache: calls under way hold it. "
                f"Pause it first"
            )

    async def load_adapter(self, name: str, directory: str) -> None:
        """Serve an adapter as the model `name`, in addition to those already loaded.

        Every version needs a separate name and directory: the prefix cache identifies adapters by
        both, and would otherwise reuse prefixes that older weights computed.

        Args:
            name: Not loaded yet.
            directory: Absolute, as the server sees it: an adapter in PEFT's format.

        Raises:
            ConfigError: the path is relative, or the server was started without this endpoint.
            EngineError: the server does not answer, has the name already, or could not load it.
        """
        body = {"lora_name": name, "lora_path": _absolute(directory)}
        await self._endpoints.post("/v1/load_lora_adapter", body, needs=LORA)

    async def unload_adapter(self, name: str) -> None:
        """Stop serving an adapter; its current answers finish. Idempotent.

        Raises:
            ConfigError: the server was started without this endpoint.
            EngineError: the server does not answer.
        """
        path = "/v1/unload_lora_adapter"
        reply = await self._endpoints.send("POST", path, {"lora_name": name})
        if reply.status != _NOT_FOUND or reply.no_such_path:
            self._endpoints.accepted(path, reply, needs=LORA)

    async def _refuse_old_head(self, directory: str) -> None:
        """Check that a reload changes all weights.

        On a CPU, vLLM 0.32 computes with a packed copy of the output head. If the head is tied to
        the embeddings, reloading them does not update the copy: the new weights run with the old
        head. The same happens with a directory without a head if the server has one.

        Raises:
            ConfigError: the output head would stay old.
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
    """Return the server's device; empty if it does not report it."""
    try:
        return msgspec.convert(answer, _ServerInfo).vllm_config.device_config.device
    except msgspec.ValidationError:
        return ""


def _names_head(names: Iterable[str]) -> bool:
    return any(head in name for name in names for head in _HEADS)


def _tensor_names(directory: str) -> set[str]:
    """Return the names in safetensors headers; empty if this process cannot read the files."""
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
