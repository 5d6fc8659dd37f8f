"""Errors of the database and their text for users."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import bson.errors
from pymongo import errors

from agl_core.errors import StoreError

_CODES: Final = {
    18: "the user or the password is wrong: correct store.url, perhaps with ?authSource=admin",
    8000: "the user or the password is wrong: correct store.url",
    13: "its user lacks a right: grant it readWrite on the database",
    20: "the server has no transactions: set store.transactions to auto or never",
    263: "the server has no transactions: set store.transactions to auto or never",
    14031: "there is no space on the server's disk: free some",
}
_TEXTS: Final = {
    r"certificate verify failed|CERTIFICATE_VERIFY_FAILED|doesn't match|IP address mismatch": (
        "the server's certificate is not accepted: give ?tlsCAFile= in store.url"
    ),
    r"SSL handshake failed|WRONG_VERSION_NUMBER|EOF occurred in violation of protocol": (
        "the server has no TLS, or it ended the handshake: remove tls=true from store.url, or set "
        "TLS up at the server"
    ),
    r"connection closed|Connection reset": (
        "the server ended the connection: if it takes TLS connections only, add ?tls=true to "
        "store.url"
    ),
    r"(?i:authentication (?:failed|required)|requires authentication)": (
        "the user or the password is wrong: correct store.url"
    ),
}
_KINDS: Final[dict[type[Exception], str]] = {
    errors.WaitQueueTimeoutError: (
        "No connection to {where} was free in time ({text}): raise store.pool_max_overflow or "
        "store.pool_timeout_s"
    ),
    errors.DocumentTooLarge: (
        "The store at {where} takes no record of this size ({text}): a span, and a rollout with "
        "its attempts, may have 16 MB"
    ),
    errors.ConfigurationError: "{where} is not an address that MongoDB's driver reads: {text}",
    errors.InvalidName: "{where} is not an address that MongoDB's driver reads: {text}",
}
_CONFLICTS: Final = frozenset({112, 251, 11000, 11001})
"""Codes of two processes that write the same documents."""
_CONFLICT: Final = re.compile("write ?conflict", re.IGNORECASE)
"""Text of such an error of a server that gives no code."""
_LONGEST: Final = 300
"""Characters of the driver's text that a message repeats."""


class Conflict(Exception):  # noqa: N818  no error of a user
    """Another process changed what a write has read: it runs again."""


@dataclass(frozen=True, slots=True)
class MongoAddress:
    """The address of a server without its password, for messages."""

    address: str
    secret: str = ""
    """The password, which is removed from every text of the driver."""

    def clean(self, error: BaseException) -> str:
        """Return the first line of an error, without the password and the driver's topology."""
        text = " ".join(str(error).split()) or type(error).__name__
        text = re.split(r"[,;]? (?:Timeout: |full error: |\(configured timeouts)", text)[0]
        text = text.replace(self.secret, "***") if self.secret else text
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@contextmanager
def store_errors(shown: MongoAddress) -> Generator[None, None, None]:
    """Convert the driver's errors to StoreErrors of one line.

    The driver's error is no cause of it, because its text may repeat what the address held.
    """
    try:
        yield
    except (errors.PyMongoError, bson.errors.BSONError) as error:
        raise as_store_error(error, shown) from None


def is_conflict(error: errors.PyMongoError) -> bool:
    """Return whether a write may succeed if it runs again at once."""
    if isinstance(error, errors.BulkWriteError):
        found: list[dict[str, Any]] = (error.details or {}).get("writeErrors", [])
        return bool(found) and all(each.get("code") in _CONFLICTS for each in found)
    if not isinstance(error, errors.OperationFailure):
        return False
    return error.code in _CONFLICTS or _CONFLICT.search(str(error)) is not None


def as_store_error(
    error: errors.PyMongoError | bson.errors.BSONError, shown: MongoAddress
) -> StoreError:
    """Return a StoreError of one line for an error of the driver."""
    where, text = shown.address, shown.clean(error)
    if isinstance(error, errors.OperationFailure) and error.code in _CODES:
        return StoreError(f"The store at {where} refused this: {_CODES[error.code]} ({text})")
    for kind, what in _KINDS.items():
        if isinstance(error, kind):
            return StoreError(what.format(where=where, text=text))
    for pattern, fix in _TEXTS.items():
        if re.search(pattern, text):
            return StoreError(f"The store at {where} cannot be reached: {fix} ({text})")
    if isinstance(error, errors.ConnectionFailure):
        return StoreError(
            f"The store at {where} cannot be reached ({text}): check the address, and that the "
            f"server runs"
        )
    return StoreError(f"The store at {where} failed ({text}): see the server's log")
