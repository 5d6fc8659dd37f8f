"""Keys and encrypted stores for tests."""

from __future__ import annotations

from agl_encryption._cipher import Cipher
from agl_encryption._keys import Keys
from agl_encryption._layer import EncryptedStore
from agl_encryption._options import FIELDS
from agl_encryption._records import Sealing

OLD, NEW = b"o" * 32, b"n" * 32
"""Keys, which are text that the environment can hold."""


def sealing(keys: dict[str, bytes] | None, active: str | None = None, fields=FIELDS) -> Sealing:
    return Sealing(Cipher(Keys(keys, active) if keys else None), fields)


def encrypted(inner, keys: dict[str, bytes] | None = None, **settings) -> EncryptedStore:
    """A store that encrypts with the key ``old``, or with others."""
    return EncryptedStore(inner, sealing(keys or {"old": OLD}, **settings))


def without_keys(inner) -> EncryptedStore:
    return EncryptedStore(inner, sealing(None))
