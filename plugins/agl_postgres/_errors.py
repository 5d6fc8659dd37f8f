"""Errors of the database: which of them pass, and their text for users."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import errors as sql

from agl_core.errors import StoreError

_CONFLICTS: Final = (
    sql.SerializationFailure,
    sql.DeadlockDetected,
    sql.UniqueViolation,
    sql.InvalidSqlStatementName,
)
"""Two processes wrote the same rows, or the server has forgotten a prepared statement: the
transaction runs again, on another connection."""
_AWAY: Final = (
    sql.AdminShutdown,
    sql.CrashShutdown,
    sql.CannotConnectNow,
    sql.IdleInTransactionSessionTimeout,
    sql.IdleSessionTimeout,
    sql.ReadOnlySqlTransaction,
    sql.TooManyConnections,
)
"""The connection ended, or leads to a server that does not write: another one may work."""
_REFUSED: Final = {
    r"password authentication failed|no password supplied|fe_sendauth": (
        "the user or the password is wrong: correct store.url, or set PGPASSWORD"
    ),
    r'database "[^"]*" does not exist': (
        "there is no such database: create it with CREATE DATABASE, or correct store.url"
    ),
    r'role "[^"]*" does not exist': "there is no such user: correct store.url",
    r"pg_hba\.conf (?:entry|rejects)[^\n]*no encryption|SSL (?:connection )?(?:is )?required": (
        "the server takes encrypted connections only: add ?sslmode=require to store.url"
    ),
    r"server does not support SSL": (
        "the server has no TLS: remove sslmode from store.url, or set TLS up at the server"
    ),
    r"certificate verify failed|root certificate file|does not match host name": (
        "the server's certificate is not accepted: give sslrootcert in store.url"
    ),
    r"pg_hba\.conf (?:entry|rejects)": "the server accepts no connection of this user from this address",
    r"permission denied for database|not permitted to (?:log|connect)": (
        "this user may not connect to this database: grant it CONNECT"
    ),
    r"received invalid response to SSL|invalid response to (?:GSSAPI|startup)": (
        "something else than PostgreSQL answers at this address: correct store.url"
    ),
}
"""Refusals of a connection, by libpq's text: libpq gives no code for them."""
_FIXES: Final[dict[type[psycopg.Error], str]] = {
    sql.LockNotAvailable: (
        "another process keeps rows locked: end it or raise store.lock_timeout_s"
    ),
    sql.DiskFull: (
        "there is no space on the server's disk: free some; the store continues once there is"
    ),
    sql.InsufficientPrivilege: (
        "its user lacks a right: grant it, or let the owner of the database run agl store migrate"
    ),
    sql.ProgramLimitExceeded: (
        "an id, run or group is too long: use at most 2,000 bytes, and records below 1 GB"
    ),
    sql.ReadOnlySqlTransaction: (
        "the server only reads, as a standby does: give the primary's address, or "
        "?target_session_attrs=read-write with both"
    ),
}
_CROWDED: Final = re.compile(r"too many (?:clients|connections)|remaining connection slots")
_LONGEST: Final = 400
"""Characters of the driver's text that a message repeats."""


@dataclass(frozen=True, slots=True)
class SafeAddress:
    """The address of a server without its password, for messages."""

    address: str
    secret: str = ""
    """The password, which is removed from every text of the driver."""

    def clean(self, error: BaseException) -> str:
        """Return the first line of an error, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        text = text.replace(self.secret, "***") if self.secret else text
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def is_starting(error: psycopg.Error) -> bool:
    """Return whether the server is starting up, and will take connections soon."""
    return "database system is starting up" in str(error) or isinstance(error, sql.CannotConnectNow)


def is_conflict(error: psycopg.Error) -> bool:
    """Return whether the transaction may succeed if it runs again at once."""
    return isinstance(error, _CONFLICTS)


def is_away(error: psycopg.Error) -> bool:
    """Return whether the connection or the server is gone, possibly for a short time."""
    if isinstance(error, _AWAY):
        return True
    if isinstance(error, sql.PipelineAborted):
        return False
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return error.sqlstate is None or error.sqlstate.startswith("08")
    return False


def refusal(error: psycopg.Error) -> str:
    """Return why a connection was refused for good, with the fix; empty if it may work later."""
    text = str(error)
    for pattern, fix in _REFUSED.items():
        if re.search(pattern, text, re.IGNORECASE):
            return fix
    return ""


def as_store_error(error: psycopg.Error, shown: SafeAddress) -> StoreError:
    """Return a StoreError of one line for an error of the database."""
    where, text = shown.address, shown.clean(error)
    if fix := refusal(error):
        return StoreError(f"The store at {where} refused the connection: {fix} ({text})")
    if _CROWDED.search(text):
        return StoreError(
            f"The server at {where} has no connection left ({text}): lower store.pool_size and "
            f"store.pool_max_overflow of its processes, or raise the server's max_connections"
        )
    for kind, fix in _FIXES.items():
        if isinstance(error, kind):
            return StoreError(f"The store at {where} failed: {fix} ({text})")
    if is_away(error):
        return StoreError(
            f"The store at {where} cannot be reached ({text}): check the address, and that the "
            f"server runs"
        )
    return StoreError(f"The store at {where} failed ({text}): see the server's log")
