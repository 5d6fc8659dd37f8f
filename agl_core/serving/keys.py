"""The one secret that the processes of a run share, and what agents get instead of it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from typing import Final

from agl_core.errors import ConfigError

ENV_KEY: Final = "AGL_API_KEY"
"""Environment variable that holds it: secrets stand in no configuration and no command line."""


def shared_key() -> str:
    """The key in ``AGL_API_KEY``.

    Raises:
        ConfigError: it is not set.
    """
    key = os.environ.get(ENV_KEY, "")
    if not key:
        raise ConfigError(
            f"{ENV_KEY} is not set: give store, gateway, runners and trainer the same secret in it, "
            f"such as the output of: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return key


def fresh_key() -> str:
    """A key that nobody else has."""
    return secrets.token_urlsafe(24)


def agent_key(key: str) -> str:
    """What agents send with their calls; the shared key cannot be had from it."""
    digest = hmac.new(key.encode(), b"agl agent", hashlib.sha256).hexdigest()
    return f"agl-{digest[:40]}"
