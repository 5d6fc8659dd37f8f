"""Check that agl-core's wrappers of the HTTP libraries record the OpenAI client's requests."""

from __future__ import annotations

import openai

from agl_core.errors import ConfigError
from agl_core.types import Scope

_CLIENTS = ("DefaultHttpxClient", "DefaultAsyncHttpxClient", "DefaultAioHttpClient")
"""Public classes of the client library that send its requests."""
_COVERED = frozenset({"httpx", "httpx2"})
"""Libraries to whose ``Client.send`` and ``AsyncClient.send`` agl-core adds identity headers."""


class OpenAIIntegration:
    """The plain OpenAI client, which has no hooks to install."""

    name = "openai"

    def attach(self) -> None:
        """Check that every client class sends through a function that agl-core wraps.

        Raises:
            ConfigError: requests of this version of the client would not be recorded.
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
        """Do nothing: `attach` installs nothing."""

    def identity(self) -> Scope | None:
        """Return None: the current scope of agl-core names the agent."""
        return None


def _sending_library(client: type[object]) -> str:
    """Return the library that defines the ``send`` method of `client`."""
    owner = next(base for base in client.__mro__ if "send" in vars(base))
    return owner.__module__.partition(".")[0]
