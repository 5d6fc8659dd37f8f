"""The secret that the processes of a run share, and the keys of attempts derived from it."""

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
"""Environment variable with the secret, which is never in a configuration or a command line."""

_TAG_CHARS: Final = 16
_MAC_CHARS: Final = 40
_DERIVED: Final = 4096
"""Keys kept at a time: every call of an attempt is checked against its key."""


class _Withheld:
    """The secret of this process while its environment lacks it."""

    __slots__ = ("before", "holders", "key")

    def __init__(self) -> None:
        self.key = ""
        self.before: str | None = None
        self.holders = 0


_WITHHELD: Final = _Withheld()


def shared_key() -> str:
    """The key in ``AGL_API_KEY``.

    Raises:
        ConfigError: it is not set.
    """
    key = given_key()
    if not key:
        raise ConfigError(
            f"{ENV_KEY} is not set: give store, gateway, runners and trainer the same secret in it, "
            f"such as the output of: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return key


def given_key() -> str:
    """The key in ``AGL_API_KEY``; empty where it is not set."""
    return os.environ.get(ENV_KEY, "") or _WITHHELD.key


@contextmanager
def withheld_key(key: str | None = None) -> Generator[None, None, None]:
    """Remove the secret from ``os.environ`` inside: agents and child processes do not get it.

    `shared_key` still returns it. Leaving the last block restores the environment.

    Args:
        key: The secret, for a process that was started without it; that of the environment when
            None.
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
    """Overwrite the secret where Linux shows it to this user's processes: /proc/<pid>/environ.

    Taking a variable out of the environment leaves the block that the process was started with.
    """
    if not os.environ.get(ENV_KEY) or sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - for this alone

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address: int | None = getenv(ENV_KEY.encode())
    if address is not None:
        ctypes.memset(address, ord("*"), len(ctypes.string_at(address)))


def fresh_key() -> str:
    """A new random key."""
    return secrets.token_urlsafe(24)


class AttemptKeys:
    """The bearer tokens of a run's agents, from which the secret cannot be computed.

    Every process that has the secret derives the same tokens, so none is stored. All of them begin
    with a tag of the run, by which the gateway knows a request of its run even when the token opens
    no attempt.
    """

    __slots__ = ("_derived", "_secret", "_tag", "_tag_bytes", "client")

    client: str
    """For the process environment, which many attempts share: it opens no attempt."""

    def __init__(self, secret: str) -> None:
        """Derive from `secret`: the shared key, or one that lives as long as a gateway."""
        self._secret = system_bytes(secret)
        self._tag = f"agl-{self._mac(b'agl run', _TAG_CHARS)}-"
        self._tag_bytes = self._tag.encode()
        self.client = self._tag + self._mac(b"agl client", _MAC_CHARS)
        self._derived = lru_cache(maxsize=_DERIVED)(self._derive)

    def of(self, rollout_id: str, attempt_id: str) -> str:
        """The token that opens the calls, rewards and traces of one attempt."""
        return self._derived(rollout_id, attempt_id).decode()

    def _derive(self, rollout_id: str, attempt_id: str) -> bytes:
        named = f"agl attempt {len(rollout_id)}:{rollout_id}{attempt_id}"
        return (self._tag + self._mac(exact_bytes(named), _MAC_CHARS)).encode()

    def belongs(self, token: str) -> bool:
        """Whether a token is of this run: its clients', or that of any of its attempts."""
        return hmac.compare_digest(system_bytes(token[: len(self._tag)]), self._tag_bytes)

    def opens(self, token: str, rollout_id: str, attempt_id: str) -> bool:
        """Whether a token is that of the attempt."""
        return hmac.compare_digest(system_bytes(token), self._derived(rollout_id, attempt_id))

    def _mac(self, message: bytes, chars: int) -> str:
        return hmac.digest(self._secret, message, "sha256").hex()[:chars]


def equal_keys(given: str, key: str) -> bool:
    """Compare in constant time; an empty key opens nothing."""
    return bool(key) and hmac.compare_digest(system_bytes(given), system_bytes(key))


def bearer_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The bearer token of a request; empty where there is none. The scheme's case does not count."""
    given = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, token = system_text(given).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
