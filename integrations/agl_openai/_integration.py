"""A client that knows no agents: the wire does the work, this checks that it can."""

from __future__ import annotations

import openai

from agl_core.errors import ConfigError
from agl_core.types import Scope

_CLIENTS = ("DefaultHttpxClient", "DefaultAsyncHttpxClient", "DefaultAioHttpClient")
"""Public classes of the client library through which it sends."""
_COVERED = frozenset({"httpx", "httpx2"})
"""Libraries whose ``Client.send`` and ``AsyncClient.send`` carry the identity headers."""


class OpenAIIntegration:
    """The plain OpenAI client. It has no hooks, so none are installed."""

    name = "openai"

    def attach(self) -> None:
        """Check that every client class sends through a function that agl-core covers.

        Raises:
            ConfigError: requests of this version of the client would go unrecorded.
        """
        for name in _CLIENTS:
            client: type[object] = getattr(openai, name)
            library = _sending_library(client)
            if library not in _COVERED:
                raise ConfigError(
                    f"openai {openai.__version__}: {name} sends through {library}, which agl-core "
                    f"does not cover, so its calls would go unrecorded: install openai>=2,<4, or "
                    f"a newer agl-core"
                )

    def detach(self) -> None:
        """Nothing was installed."""

    def identity(self) -> Scope | None:
        """No opinion: the current agl scope says who speaks."""
        return None


def _sending_library(client: type[object]) -> str:
    """The library that defines the ``send`` which `client` inherits or overrides."""
    owner = next(base for base in client.__mro__ if "send" in vars(base))
    return owner.__module__.partition(".")[0]
