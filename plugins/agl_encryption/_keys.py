"""Keys: where they come from, and their ids."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

from agl_core.config import load_object
from agl_core.errors import ConfigError
from agl_encryption._options import EncryptionOptions

ENV_KEY: Final = "AGL_ENCRYPTION_KEY"
"""One key."""
ENV_KEYS: Final = "AGL_ENCRYPTION_KEYS"
"""Several keys, ``ID:KEY,ID:KEY``; the first encrypts."""
ENV_FILE: Final = "AGL_ENCRYPTION_KEYS_FILE"
"""`EncryptionOptions.keys_file`, for commands without a configuration."""
ENV_PROVIDER: Final = "AGL_ENCRYPTION_PROVIDER"
"""`EncryptionOptions.provider`, for commands without a configuration."""
ENV_ACTIVE: Final = "AGL_ENCRYPTION_ACTIVE"
"""`EncryptionOptions.active`, for commands without a configuration."""

KEY_BYTES: Final = 32
_MAKE: Final = "make one with `agl store key`"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_AFTER_ID: Final = re.compile(r"\s*[=:]\s*")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{64}")


class Keys:
    """Keys by their ids; the first is active unless another is named."""

    def __init__(self, keys: Mapping[str, bytes], active: str | None = None) -> None:
        """Check the ids.

        Raises:
            ConfigError: there is no key, or none of the active id.
        """
        if not keys:
            raise ConfigError(f"There is no encryption key: {_MAKE}, and set {ENV_KEY} to it")
        self.active = next(iter(keys)) if active is None else active
        if self.active not in keys:
            raise ConfigError(
                f"The active encryption key {self.active!r} is not among the keys {[*keys]}: add "
                f"it, or name one of them as encryption.active or {ENV_ACTIVE}"
            )
        self._keys = dict(keys)

    @property
    def ids(self) -> list[str]:
        return [*self._keys]

    def get(self, key_id: str) -> bytes | None:
        return self._keys.get(key_id)


def load_keys(options: EncryptionOptions | None) -> Keys | None:
    """Return the keys of the environment and of the options; None if there are none.

    The environment's keys come first. Options of a run that name no source also take the file and
    the provider of the environment.

    Raises:
        ConfigError: a key, an id or a source is wrong.
    """
    found: dict[str, bytes] = {}
    _add(found, _one_or_more(os.environ.get(ENV_KEY, ""), where=ENV_KEY), where=ENV_KEY)
    several = os.environ.get(ENV_KEYS, "").split(",")
    _add(found, _listed(several, where=ENV_KEYS), where=ENV_KEYS)
    file = (options.keys_file if options is not None else None) or os.environ.get(ENV_FILE)
    if file:
        _add(found, _of_file(Path(file).expanduser()), where=file)
    provider = (options.provider if options is not None else None) or os.environ.get(ENV_PROVIDER)
    if provider:
        _add(found, _provided(provider), where=provider)
    active = (options.active if options is not None else None) or os.environ.get(ENV_ACTIVE)
    return Keys(found, active or None) if found or active else None


def new_key() -> str:
    """Return a new random key as text."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def id_of(key: bytes) -> str:
    """Return the id of a key that has no name: every key has another, from which it cannot be computed."""
    return sha256(b"agl-core key id" + key).hexdigest()[:8]


def _add(found: dict[str, bytes], keys: Mapping[str, bytes], *, where: str) -> None:
    for key_id, key in keys.items():
        if found.setdefault(key_id, key) != key:
            raise ConfigError(
                f"{where}: the encryption key {key_id!r} differs from another key of this id: "
                f"rename one, and keep the id of the key that encrypted what is stored"
            )


def _one_or_more(text: str, *, where: str) -> dict[str, bytes]:
    """Read one key alone, or lines of ``ID = KEY``."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) == 1 and not re.match(rf"{_ID.pattern}{_AFTER_ID.pattern}[^\s=]", lines[0]):
        key = _key(lines[0], where=where)
        return {id_of(key): key}
    return _listed(lines, where=where)


def _listed(entries: Sequence[str], *, where: str) -> dict[str, bytes]:
    """Read entries ``ID = KEY`` or ``ID:KEY``; empty ones are skipped."""
    found: dict[str, bytes] = {}
    for entry in filter(None, (each.strip() for each in entries)):
        key_id, *value = _AFTER_ID.split(entry, maxsplit=1)
        if not value:
            raise ConfigError(f"{where}: an encryption key has no id: write ID:KEY")
        _add(found, {_named(key_id, where=where): _key(value[0], where=where)}, where=where)
    return found


def _of_file(path: Path) -> dict[str, bytes]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The encryption keys in {str(path)!r} cannot be read: {error}"
        ) from error
    found = _one_or_more(text, where=str(path))
    if not found:
        raise ConfigError(f"The file {str(path)!r} has no encryption key: {_MAKE}")
    return found


def _provided(reference: str) -> dict[str, bytes]:
    """Return the keys that a function gives.

    Raises:
        ConfigError: there is no such function, it fails, or what it returns is no keys.
    """
    function = load_object(reference)
    try:
        given: object = function()
    except Exception as error:  # the user's function may raise anything
        raise ConfigError(
            f"The function {reference!r} gave no encryption keys: {type(error).__name__}: {error}"
        ) from error
    if isinstance(given, str | bytes):
        key = _key(given, where=reference)
        return {id_of(key): key}
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"The function {reference!r} returned no keys: return them by their ids, or one key"
        )
    keys = cast("Mapping[Any, Any]", given)
    return {
        _named(str(key_id), where=reference): _key(key, where=reference)
        for key_id, key in keys.items()
    }


def _named(key_id: str, *, where: str) -> str:
    if not _ID.fullmatch(key_id):
        raise ConfigError(
            f"{where}: the id of an encryption key has {len(key_id)} characters, which are not all "
            f"letters, digits, '.', '_' and '-', or too many: use at most 64 of them"
        )
    return key_id


def _key(given: Any, *, where: str) -> bytes:
    """Return the 32 bytes of a key, which no message shows.

    Raises:
        ConfigError: it is no key.
    """
    key = given if isinstance(given, bytes) and len(given) == KEY_BYTES else None
    if key is None and isinstance(given, bytes):
        given = given.decode("ascii", "replace")
    if key is None and isinstance(given, str):
        text = given.strip()
        key = bytes.fromhex(text) if _HEX.fullmatch(text) else _decoded(text)
    if key is None or len(key) != KEY_BYTES:
        size = "" if key is None else f", but has {len(key)}"
        raise ConfigError(
            f"{where}: an encryption key is 32 bytes, as base64 or 64 hexadecimal digits{size}: "
            f"{_MAKE}"
        )
    return key


def _decoded(text: str) -> bytes | None:
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
