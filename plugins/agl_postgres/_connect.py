"""Connections to the server: their settings, the pool, and errors in a user's words."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import psycopg
import psycopg_pool
from psycopg import conninfo

from agl_core.clocks import monotonic
from agl_core.errors import StoreError
from agl_core.store import without_password
from agl_postgres._errors import SafeAddress, as_store_error
from agl_postgres._options import PostgresOptions, libpq_address
from agl_postgres._rows import SyncConnection

_SETTINGS: Final[dict[str, Any]] = {
    "application_name": "agl-core",
    "connect_timeout": 10,
    # A server that vanished is noticed within a minute, not after hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
"""libpq's parameters, unless the address gives them."""
_SLICE_S: Final = 0.5
_STALLED_S: Final = 60
"""Seconds after which the server ends the transaction of a process that was stopped in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A database and how to connect to it."""

    parameters: dict[str, Any]
    shown: SafeAddress
    lock_timeout_s: float
    migrate_timeout_s: float
    prepared: bool

    @classmethod
    def of(cls, options: PostgresOptions, *, listening: bool = False) -> Server:
        """Return the server of the options; that of notifications if `listening`.

        Raises:
            StoreError: libpq cannot read the address.
        """
        url = (options.listen_url if listening else None) or options.url
        shown = without_password(url)
        try:
            given = cast("dict[str, Any]", conninfo.conninfo_to_dict(libpq_address(url)))
        except (psycopg.Error, UnicodeError):
            # The error of the driver may repeat the password.
            raise StoreError(
                f"{shown!r} is not an address that PostgreSQL reads: its form is "
                f"postgresql://user:password@host:5432/database?parameter=value, with %25 for a "
                f"percent sign in the password"
            ) from None
        return cls(
            parameters={**_SETTINGS, **given, "client_encoding": "utf8"},
            shown=SafeAddress(shown, str(given.get("password", ""))),
            lock_timeout_s=options.lock_timeout_s,
            migrate_timeout_s=options.migrate_timeout_s,
            prepared=options.prepared_statements,
        )

    def connect(self, *, autocommit: bool = True, lock_timeout_s: float = 0.0) -> SyncConnection:
        """Connect.

        Raises:
            psycopg.Error: the server refused, or is away.
        """
        connection = psycopg.connect(**self.parameters, autocommit=autocommit)
        if lock_timeout_s:
            connection.execute(
                "SELECT set_config('lock_timeout', %s, FALSE)",
                [f"{round(1000 * lock_timeout_s)}ms"],
            )
        return connection

    def prepare(self, connection: SyncConnection) -> None:
        """Set a new connection of the pool up."""
        if not self.prepared:
            connection.prepare_threshold = None
        connection.execute(
            "SELECT set_config('lock_timeout', %s, FALSE), "
            "set_config('idle_in_transaction_session_timeout', %s, FALSE)",
            [f"{round(1000 * self.lock_timeout_s)}ms", f"{_STALLED_S}s"],
        )


@contextmanager
def connection_errors(shown: SafeAddress) -> Generator[None, None, None]:
    """Convert the driver's errors to StoreErrors of one line.

    The driver's error is no cause of it, because its text may repeat what the address held.
    """
    try:
        yield
    except psycopg.Error as error:
        raise as_store_error(error, shown) from None


class Pool:
    """The connections of a store, each for one query or transaction at a time."""

    def __init__(self, server: Server, options: PostgresOptions) -> None:
        self.server = server
        self._timeout_s = options.pool_timeout_s
        self.recycle_s = options.pool_recycle_s
        self._most = options.pool_max
        check = psycopg_pool.ConnectionPool.check_connection if options.pool_pre_ping else None
        self._pool = psycopg_pool.ConnectionPool[SyncConnection](
            kwargs={**server.parameters, "autocommit": True},
            min_size=min(options.pool_size, self._most),
            max_size=self._most,
            timeout=options.pool_timeout_s,
            max_lifetime=options.pool_recycle_s,
            # A failed attempt is repeated for the next query that needs a connection.
            reconnect_timeout=_SLICE_S,
            configure=server.prepare,
            check=check,
            open=False,
            name="agl",
        )

    def open(self) -> None:
        self._pool.open()

    def close(self) -> None:
        self._pool.close()

    def statistics(self) -> dict[str, int]:
        """Return psycopg's counts of the pool: connections, waiting and failed requests."""
        return dict(self._pool.get_stats())

    def take(self) -> SyncConnection:
        """Take a connection, which `give_back` returns.

        Raises:
            psycopg.Error: the server refuses connections, or is away.
            StoreError: every connection was in use for too long.
        """
        end = monotonic() + self._timeout_s
        while True:
            left = end - monotonic()
            try:
                return self._pool.getconn(timeout=max(0.001, min(_SLICE_S, left)))
            except psycopg_pool.PoolTimeout:
                figures = self.statistics()
                if figures.get("pool_size", 0) < self._most:
                    self._probe()
                if left <= 0:
                    raise self._dry(figures) from None

    def _probe(self) -> None:
        """Connect as the pool does, because the pool does not report why it could not."""
        self.server.connect().close()

    def _dry(self, figures: dict[str, int]) -> StoreError:
        return StoreError(
            f"No connection to {self.server.shown.address} was free for {self._timeout_s:g} s: "
            f"{figures.get('pool_size', 0)} of at most {self._most} are open, "
            f"{figures.get('pool_available', 0)} free, {figures.get('requests_waiting', 0)} other "
            f"requests wait; raise store.pool_max_overflow or store.pool_timeout_s"
        )

    def give_back(self, connection: SyncConnection, *, broken: bool = False) -> None:
        if broken:
            with contextlib.suppress(psycopg.Error):
                connection.close()
        self._pool.putconn(connection)


class HeldConnection:
    """A connection of a pool that its user keeps, and replaces when it is too old."""

    def __init__(self, pool: Pool, *, few_statements: bool) -> None:
        """Begin without a connection.

        Args:
            pool: The pool.
            few_statements: Whether each statement is planned once, at its first execution. They
                are such that every plan uses the indexes, also one for empty tables.
        """
        self._pool = pool
        self._few_statements = few_statements and pool.server.prepared
        self._connection: SyncConnection | None = None
        self._expires_at = math.inf

    @property
    def held(self) -> bool:
        return self._connection is not None

    def get(self) -> SyncConnection:
        """Return the connection, which `Pool.take` takes if none is held."""
        if self._connection is not None and monotonic() > self._expires_at:
            self.give_back()
        if self._connection is None:
            self._connection = self._pool.take()
            self._expires_at = monotonic() + self._pool.recycle_s
            if self._few_statements:
                self._plan_once(self._connection)
        return self._connection

    def _plan_once(self, connection: SyncConnection) -> None:
        connection.prepare_threshold = 0
        try:
            connection.execute("SET plan_cache_mode = force_generic_plan")
        except psycopg.Error:
            self.give_back(broken=True)
            raise

    def give_back(self, *, broken: bool = False) -> None:
        if self._connection is not None:
            self._pool.give_back(self._connection, broken=broken)
            self._connection = None
