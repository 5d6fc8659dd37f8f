"""The server of one replica: a model behind an OpenAI-compatible endpoint.

It uses the engine ``torch`` of agl-core, or `agl_verl.cpu._vision` for vision models.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ray
from agl_endpoints import OneModel, OpenAIServer
from transformers import AutoConfig

from agl_core.app import load_plugins
from agl_core.config import validate
from agl_core.errors import ConfigError, EngineError
from agl_core.interfaces import Engine
from agl_core.types import Policy
from agl_verl.vision import vision_of

_POLICY = "served"
_OPTIONS = "verl.actor_rollout_ref.rollout.engine_kwargs.agl_cpu"
WEIGHTS = "model.safetensors"
"""File name of new weights."""


def actor_name(replica_rank: int) -> str:
    """Return the name of the Ray actor that serves a replica."""
    return f"agl_cpu_server_{replica_rank}"


def handover(replica_rank: int) -> Path:
    """Return the directory for passing weights to a replica's server; constant in a run."""
    run = quote(ray.get_runtime_context().namespace, safe="")  # a namespace may be any text
    return Path(tempfile.gettempdir()) / f"{run}-{replica_rank}"


class CpuServer:
    """A Ray actor with the methods that `RolloutReplica` calls on its servers."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = dict(options)
        self._engine: Engine | None = None
        self._server: OpenAIServer | None = None
        self._address = ""
        self._handed = ""

    async def start(self) -> str:
        """Load the model, start to listen and return ``host:port``."""
        engine = self._made()
        await engine.start([Policy(name=_POLICY, model=self._model, trainable=True)])
        self._engine = engine
        self._server = OpenAIServer(OneModel(engine.backend(_POLICY), self._model))
        url = await self._server.start("127.0.0.1", 0)
        self._address = url.removeprefix("http://")
        return self._address

    async def get_server_address(self) -> tuple[str, int]:
        if self._server is None:
            raise EngineError("The server has not been started")
        host, port = self._address.rsplit(":", 1)
        return host, int(port)

    async def pid(self) -> int:
        """Return the process id of the server."""
        return os.getpid()

    async def load(self, directory: str, version: int) -> None:
        """Serve the weights in `directory`; running calls are answered with the old ones.

        The caller removes the directory, so that no files remain if this process is killed. `stop`
        removes a directory left by a worker that was killed.
        """
        self._handed = directory
        engine = self._loaded()
        AutoConfig.from_pretrained(self._model).save_pretrained(directory)
        await engine.load(_POLICY, directory, version=version)

    async def stop(self) -> None:
        """Stop the server and the engine."""
        if self._server is not None:
            await self._server.stop()
        if self._engine is not None:
            await self._engine.stop()
        if self._handed:
            shutil.rmtree(self._handed, ignore_errors=True)

    async def wake_up(self, tags: Any = None) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None:
        """Do nothing: `load` clears the cache."""

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def abort_all_requests(self, *, reject_request: bool = False) -> None: ...

    async def resume_generation(self) -> None: ...

    def _made(self) -> Engine:
        """Return the engine, before it loads weights.

        Raises:
            ConfigError: an option is invalid, or the model's image processor cannot be loaded.
        """
        registry = load_plugins().registry("engines")
        model = registry.options_model("torch")
        if model is None:
            raise ConfigError("Engine 'torch' has no options: agl-core[torch] is damaged")
        options: Any = validate(model, self._options, where=_OPTIONS)
        vision = vision_of(self._model)
        if vision is None:
            return registry.create("torch", options, None)
        from agl_verl.cpu._vision import VisionEngine  # noqa: PLC0415 (imports engine 'torch')

        return VisionEngine(options, vision)

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise EngineError("The server has not been started")
        return self._engine
