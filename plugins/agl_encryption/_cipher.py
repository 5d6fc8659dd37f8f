"""Encryption of single values by AES-256-GCM, in a form that names the key."""

from __future__ import annotations

import base64
import binascii
import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from agl_encryption._errors import EncryptionError
from agl_encryption._keys import ENV_KEY, ENV_KEYS, Keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MAGIC: Final = b"\x00agl-sealed\x01"
"""Begins every encrypted value; the last byte is the version of the form."""
_TEXT: Final = "agl-sealed:"
"""Begins an encrypted value where only text can be stored; base64 follows."""
_NONCE: Final = 12
_TAG: Final = 16
_SHORTEST: Final = len(_MAGIC) + 2 + _NONCE + _TAG


class Cipher:
    """Encrypts with the active key, and decrypts with every key."""

    def __init__(self, keys: Keys | None) -> None:
        """Configure the cipher; without keys it only recognises what is encrypted."""
        self.keys = keys
        self._ciphers: dict[str, AESGCM] = {}
        self._refusals: tuple[type[Exception], ...] = ()
        self._head = b""
        self.active = ""
        """Id of the key that encrypts; empty without keys."""
        if keys is not None:
            self.active = keys.active
            self._head = _MAGIC + bytes([len(keys.active)]) + keys.active.encode()
            self._active = self._cipher(keys.active, what="")
            secret = keys.get(keys.active) or b""
            self._nonces = blake2b(b"agl-core nonces", key=secret, digest_size=32).digest()

    def seal(self, value: bytes, place: bytes, *, repeatable: bool = False) -> bytes:
        """Encrypt a value.

        Args:
            value: The value.
            place: The record and field, without which it cannot be decrypted.
            repeatable: Return equal bytes for an equal value in an equal place: the nonce is a
                keyed digest of both, and not random.
        """
        if repeatable:
            size = len(place).to_bytes(8, "big")
            digest = blake2b(key=self._nonces, digest_size=_NONCE)
            for part in (size, place, value):
                digest.update(part)
            nonce = digest.digest()
        else:
            nonce = os.urandom(_NONCE)
        return self._head + nonce + self._active.encrypt(nonce, value, place)

    def open(self, sealed: bytes, place: bytes, *, what: str) -> bytes:
        """Decrypt a value that `key_id` recognises.

        Args:
            sealed: The encrypted value.
            place: The record and field.
            what: Names the value in errors.

        Raises:
            EncryptionError: its key is missing or wrong, or the value was changed or moved.
        """
        if self._head and sealed.startswith(self._head):
            known, cipher, start = self.active, self._active, len(self._head)
        else:
            known = key_id(sealed) or ""
            cipher, start = self._cipher(known, what=what), len(_MAGIC) + 1 + len(known)
        body = memoryview(sealed)[start + _NONCE :]
        try:
            return cipher.decrypt(sealed[start : start + _NONCE], body, place)
        except self._refusals:
            raise EncryptionError(
                what,
                known,
                "but the key of this id does not decrypt it: give the key that had the id when it "
                "was stored. If it is that key, the record was changed or moved",
            ) from None

    def _cipher(self, known: str, *, what: str) -> AESGCM:
        if known not in self._ciphers:
            key = self.keys.get(known) if self.keys is not None else None
            if key is None:
                have = f"; the keys here are {self.keys.ids}" if self.keys is not None else ""
                raise EncryptionError(
                    what,
                    known,
                    f"which is not here: set {ENV_KEY}, or add the key to {ENV_KEYS}{have}",
                )
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

            self._refusals = (InvalidTag,)
            self._ciphers[known] = AESGCM(key)
        return self._ciphers[known]


def key_id(value: object) -> str | None:
    """Return the id of the key of an encrypted value; None for every other value."""
    if not isinstance(value, bytes) or not value.startswith(_MAGIC) or len(value) < _SHORTEST:
        return None
    size = value[len(_MAGIC)]
    start = len(_MAGIC) + 1
    known = value[start : start + size]
    whole = len(known) == size > 0 and len(value) >= start + size + _NONCE + _TAG
    return known.decode("ascii", "replace") if whole else None


def as_text(sealed: bytes) -> str:
    """Return an encrypted value as text, for fields that take only text."""
    return _TEXT + base64.b64encode(sealed).decode()


def from_text(text: str) -> bytes | None:
    """Return the encrypted value in a text; None if the text is not one."""
    if not text.startswith(_TEXT):
        return None
    try:
        sealed = base64.b64decode(text[len(_TEXT) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    return sealed if key_id(sealed) is not None else None
