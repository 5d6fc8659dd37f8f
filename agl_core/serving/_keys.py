"""The secret that the processes of a run share, and the attempts' keys that are derived from it."""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from agl_core.errors import ConfigError
from agl_core.text import exact_bytes, system_bytes, system_text

ENV_KEY: Final = "AGL_API_KEY"
"""Environment variable with the secret, which is never in a configuration or command line."""

_TAG_CHARS: Final = 16
_MAC_CHARS: Final = 40
_KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
_DERIVED: Final = 4096
"""Size of the cache of derived keys: every call of an attempt is checked against its key."""


class _Withheld:
    """The secret of this process while it is removed from the environment."""

    __slots__ = ("before", "holders", "key")

    def __init__(self) -> None:
        self.key = ""
        self.before: str | None = None
        self.holders = 0


_WITHHELD: Final = _Withheld()


def shared_key() -> str:
    """Return the key in ``AGL_API_KEY``.

    Raises:
        ConfigError: the variable is not set.
    """
    key = given_key()
    if not key:
        raise ConfigError(
            f"{ENV_KEY} is not set: give store, gateway, runners and trainer the same secret in it, "
            f"such as the output of: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return key


def given_key() -> str:
    """Return the key in ``AGL_API_KEY``; empty if it is not set."""
    return os.environ.get(ENV_KEY, "") or _WITHHELD.key


@contextmanager
def withheld_key(key: str | None = None) -> Generator[None, None, None]:
    """Remove the secret from ``os.environ`` in the block, to hide it from agents and subprocesses.

    `shared_key` still returns it. The end of the last such block restores the environment.

    Args:
        key: The secret, for a process that was started without it; None uses the environment's.
    """
    _blank()
    given = os.environ.pop(ENV_KEY, None)
    if not _WITHHELD.holders or given is not None:
        _WITHHELD.before, _WITHHELD.key = given, key or given or ""
    _WITHHELD.holders += 1
    try:
        yield
    finally:
        _WITHHELD.holders -= 1
        if not _WITHHELD.holders:
            before, _WITHHELD.before, _WITHHELD.key = _WITHHELD.before, None, ""
            if before is not None:
                os.environ.setdefault(ENV_KEY, before)


def _blank() -> None:
    """Overwrite the secret in ``/proc/<pid>/environ``, which all processes of this user can read.

    Removing a variable from ``os.environ`` does not change the process's initial environment block.
    """
    if not os.environ.get(ENV_KEY) or sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - needed only in this function

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address: int | None = getenv(ENV_KEY.encode())
    if address is not None:
        ctypes.memset(address, ord("*"), len(ctypes.string_at(address)))


def fresh_key() -> str:
    """Return a new random key."""
    return secrets.token_urlsafe(24)


class AttemptKeys:
    """Derives the bearer tokens of a run's attempts, from which the secret cannot be computed.

    Every process with the secret derives the same tokens, so they are not stored. All tokens begin
    with a tag of the run. With it the gateway recognises requests of its run even if the token is
    not for the requested attempt.
    """

    __slots__ = ("_derived", "_secret", "_tag", "_tag_bytes", "client")

    client: str
    """Token for the process environment, which attempts share; it gives access to no attempt."""

    def __init__(self, secret: str) -> None:
        """Derive tokens from `secret`: the shared key, or a key of one gateway instance."""
        self._secret = system_bytes(secret)
        self._tag = f"agl-{self._mac(b'agl run', _TAG_CHARS)}-"
        self._tag_bytes = self._tag.encode()
        self.client = self._tag + self._mac(b"agl client", _MAC_CHARS)
        self._derived = lru_cache(maxsize=_DERIVED)(self._derive)

    def of(self, rollout_id: str, attempt_id: str) -> str:
        """Return the token for the calls, rewards and traces of one attempt."""
        return self._derived(rollout_id, attempt_id).decode()

    def _derive(self, rollout_id: str, attempt_id: str) -> bytes:
        named = f"agl attempt {len(rollout_id)}:{rollout_id}{attempt_id}"
        return (self._tag + self._mac(exact_bytes(named), _MAC_CHARS)).encode()

    def belongs(self, token: str) -> bool:
        """Whether a token is of this run: the one for clients, or that of any attempt."""
        return hmac.compare_digest(system_bytes(token[: len(self._tag)]), self._tag_bytes)

    def opens(self, token: str, rollout_id: str, attempt_id: str) -> bool:
        """Whether a token gives access to the attempt."""
        return hmac.compare_digest(system_bytes(token), self._derived(rollout_id, attempt_id))

    def _mac(self, message: bytes, chars: int) -> str:
        return hmac.digest(self._secret, message, "sha256").hex()[:chars]


def equal_keys(given: str, key: str) -> bool:
    """Compare two keys in constant time; an empty `key` equals nothing."""
    return bool(key) and hmac.compare_digest(system_bytes(given), system_bytes(key))


def bearer_of(headers: list[tuple[bytes, bytes]]) -> str:
    """Return a request's bearer token, or else its ``x-api-key``; empty if it has neither.

    The scheme is case-insensitive.
    """
    given = {name: value for name, value in reversed(headers) if name in _KEY_HEADERS}
    scheme, _, token = system_text(given.get(b"authorization", b"")).partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or system_text(given.get(b"x-api-key", b""))
