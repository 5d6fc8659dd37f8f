"""Options of the store ``postgres``."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from agl_core.errors import ConfigError
from agl_core.store import BaseStoreOptions

_SCHEME: Final = re.compile(r"(?i)^postgres(?:ql)?(?:\+\w+)?://")
_LARGE_POOL: Final = 5
_USER: Final = re.compile(r"^[^/?#]*@")


class PostgresOptions(BaseStoreOptions):
    """Options of the store ``postgres``."""

    schemes = (
        "postgresql",
        "postgres",
        "postgresql+psycopg",
        "postgresql+psycopg2",
        "postgresql+asyncpg",
    )

    url: str = Field(default="", validate_default=True)
    """Address of the database: ``postgresql://user:password@host:5432/database``. What it does not
    name is taken from ``PGPASSWORD``, ``PGPASSFILE`` and the other variables of PostgreSQL."""
    listen_url: str | None = None
    """Address for the connection that waits for notifications, where `url` is a connection pooler
    (PgBouncer in transaction mode), which does not pass them on; `url` when None."""
    pool_size: NonNegativeInt = 10
    """Connections that a process keeps open, besides one for notifications."""
    pool_max_overflow: NonNegativeInt = 20
    """Further connections that it opens under load."""
    pool_timeout_s: PositiveFloat = 30.0
    """How long a query waits for a free connection."""
    pool_recycle_s: PositiveFloat = 3600.0
    """Age at which a connection is replaced."""
    pool_pre_ping: bool = True
    """Whether a connection is checked before a query uses it."""
    prepared_statements: bool = True
    """False for a connection pooler that does not support them."""
    retry_s: PositiveFloat = 30.0
    """How long reads and writes are tried again while the server is away; they then fail."""
    lock_timeout_s: PositiveFloat = 30.0
    """How long a write waits for rows that another process has locked."""
    migrate_timeout_s: PositiveInt = 300
    """How long to wait for another process that creates or migrates the tables."""

    @field_validator("url")
    @classmethod
    def _given(cls, given: str) -> str:
        if not given:
            raise ValueError(
                "the store 'postgres' needs url, such as postgresql://user:password@host/database"
            )
        return _checked(given)

    @field_validator("listen_url")
    @classmethod
    def _checked(cls, given: str | None) -> str | None:
        return given and _checked(given)

    @property
    def pool_max(self) -> int:
        """Most connections of the pool: at least one to write and one to read."""
        return max(2, self.pool_size + self.pool_max_overflow)

    @property
    def pool_is_large(self) -> bool:
        """Whether some connections can be kept for one use each."""
        return self.pool_max >= _LARGE_POOL


def _checked(url: str) -> str:
    """Return the address if it has a known form.

    A password stands before ``@`` only, where messages leave it out.

    Raises:
        ValueError: it has not.
        ConfigError: it has a password among its parameters.
    """
    match = _SCHEME.match(url)
    if match is None:
        raise ValueError("an address of PostgreSQL begins with postgresql://")
    rest = url[match.end() :]
    after = _USER.sub("", rest, count=1)
    if "@" in after:
        raise ValueError(
            "the user or the password contains one of / ? # @: write it as %2F, %3F, %23, %40"
        )
    if re.search(r"[?&](?:ssl)?password=", after, re.IGNORECASE):
        # The message of a ValueError would show the address, whose parameters are not hidden.
        raise ConfigError(
            "Configuration: store.url: give the password before the @, as in "
            "postgresql://user:password@host/database, or in the environment variable PGPASSWORD, "
            "and not as a parameter of the address"
        )
    if "\0" in url:
        raise ValueError("the address contains the character NUL")
    return url


def libpq_address(url: str) -> str:
    """Return the address as libpq takes it, without the driver that SQLAlchemy names."""
    return _SCHEME.sub("postgresql://", url, count=1)
