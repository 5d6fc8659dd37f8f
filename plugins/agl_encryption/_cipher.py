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
    from collections.abc import Iterable, Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MAGIC: Final = b"\x00agl-sealed\x01"
"""Begins every encrypted value; the last byte is the version of the form."""
_TEXT: Final = "agl-sealed:"
"""Begins an encrypted value where only text can be stored; base64 follows."""
_NONCE: Final = 12
_TAG: Final = 16
_SHORTEST: Final = len(_MAGIC) + 2 + _NONCE + _TAG


class Cipher:
    """Encrypts with the active key, and decrypts with every key.

    AES-GCM must never use a nonce twice with one key. A nonce is 96 bits of the system's generator;
    those of a batch are one read of it, cut into pieces. No counter and no unused nonce is kept, so
    threads, forked processes, restarts and restored copies of a machine have nothing to repeat. Two
    of n values have one nonce with a probability below n**2 / 2**97: 2**-33 for the four billion
    values (2**32) that NIST SP 800-38D allows for a key. The nonce of a repeatable value is a keyed
    digest of the value and its place: the same one encrypts only the same value again.
    """

    def __init__(self, keys: Keys | None) -> None:
        """Configure the cipher; without keys it only recognises what is encrypted."""
        self.keys = keys
        self._ciphers: dict[str, AESGCM] = {}
        self._refusals: tuple[type[Exception], ...] = ()
        self._head = b""
        self._start = 0
        self.active = ""
        """Id of the key that encrypts; empty without keys."""
        if keys is not None:
            self.active = keys.active
            self._head = _MAGIC + bytes([len(keys.active)]) + keys.active.encode()
            self._active = self._cipher(keys.active, what="")
            secret = keys.get(keys.active) or b""
            self._nonces = blake2b(b"agl-core nonces", key=secret, digest_size=32).digest()
            self._start = len(self._head) + _NONCE

    def seal(self, value: bytes, place: bytes) -> bytes:
        """Encrypt a value.

        Args:
            value: The value.
            place: The record and field, without which it cannot be decrypted.
        """
        nonce = os.urandom(_NONCE)
        return self._head + nonce + self._active.encrypt(nonce, value, place)

    def seal_all(self, values: Iterable[bytes | bytearray], places: Sequence[bytes]) -> list[bytes]:
        """Encrypt values, each in its place, with the nonces of one read.

        A value is encrypted before the next one is taken, so that all can be in the same bytes.
        """
        head, encrypt = self._head, self._active.encrypt
        nonces, start = os.urandom(_NONCE * len(places)), 0
        sealed: list[bytes] = []
        for value, place in zip(values, places, strict=True):
            nonce = nonces[start : (start := start + _NONCE)]
            sealed.append(b"".join((head, nonce, encrypt(nonce, value, place))))
        return sealed

    def seal_repeatable(self, value: bytes, place: bytes) -> bytes:
        """Encrypt to equal bytes whenever value and place are equal."""
        size = len(place).to_bytes(8, "big")
        digest = blake2b(key=self._nonces, digest_size=_NONCE)
        for part in (size, place, value):
            digest.update(part)
        nonce = digest.digest()
        return self._head + nonce + self._active.encrypt(nonce, value, place)

    def all_opened(self, sealed: Sequence[object], places: Sequence[bytes]) -> list[bytes | None]:
        """Decrypt values of the active key, each in its place; None for any other value.

        `open` says why one cannot be decrypted, and decrypts with the other keys.
        """
        values: list[bytes | None] = [None] * len(sealed)
        start = self._start
        if not start:
            return values
        head, shortest, decrypt = self._head, start + _TAG, self._active.decrypt
        for number, each in enumerate(sealed):
            if isinstance(each, bytes) and each.startswith(head) and len(each) >= shortest:
                try:
                    value = decrypt(each[start - _NONCE : start], each[start:], places[number])
                except self._refusals:
                    continue
                values[number] = value
        return values

    def open(self, sealed: bytes, place: bytes, *, what: str) -> bytes:
        """Decrypt a value that `key_id` recognises.

        Args:
            sealed: The encrypted value.
            place: The record and field.
            what: Names the value in errors.

        Raises:
            EncryptionError: its key is missing or wrong, or the value was changed or moved.
        """
        known = key_id(sealed) or ""
        cipher = self._cipher(known, what=what)
        start = len(_MAGIC) + 1 + len(known) + _NONCE
        try:
            return cipher.decrypt(sealed[start - _NONCE : start], sealed[start:], place)
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
