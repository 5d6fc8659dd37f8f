"""The engine ``http``: serves policies from an OpenAI-compatible endpoint and cannot train."""

from __future__ import annotations

import os
from collections.abc import Sequence

from agl_endpoints import HttpBackend

from agl_core.config import EngineOptions
from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Backend, Engine
from agl_core.types import Policy

AUTO = "auto"
"""Value of a policy's ``model`` that selects the only model of the endpoint."""


class HttpOptions(EngineOptions):
    """Options of the engine ``http``."""

    base_url: str
    """Of the endpoint, ending in ``/v1``."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the endpoint's key; may be unset for open endpoints."""


class HttpEngine(Engine):
    """Serves all policies from one endpoint; a policy's `model` is a model there, or ``auto``."""

    def __init__(self, options: HttpOptions, setup: AlgorithmSetup | None = None) -> None:
        """Create an engine; `start` connects.

        Raises:
            ConfigError: `setup` is given: this engine cannot run an algorithm.
        """
        if setup is not None:
            raise self.only_serves(f"run algorithm {setup.name!r}")
        self._options = options
        self._backends: dict[str, HttpBackend] = {}

    async def start(self, policies: Sequence[Policy]) -> None:
        """Create a backend for each policy.

        Raises:
            ConfigError: a policy's model is ``auto`` and the endpoint does not list exactly one
                model.
        """
        key = os.environ.get(self._options.api_key_env, "")
        for policy in policies:
            backend = HttpBackend(self._options.base_url, api_key=key, model=policy.model)
            self._backends[policy.name] = backend
            if policy.model == AUTO:
                backend.model = await self._only_model(backend)

    async def stop(self) -> None:
        for backend in self._backends.values():
            await backend.close()
        self._backends.clear()

    def backend(self, policy: str) -> Backend:
        return self._backends[policy]

    async def _only_model(self, backend: HttpBackend) -> str:
        names = await backend.models()
        if len(names) != 1:
            raise ConfigError(
                f"Endpoint {self._options.base_url} lists the models {names}: name one in 'model'"
            )
        return names[0]
