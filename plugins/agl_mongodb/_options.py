"""Options of the store ``mongodb``."""

from __future__ import annotations

import os
import re
from typing import Final, Literal, Self
from urllib.parse import unquote

from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator, model_validator

from agl_core.errors import ConfigError
from agl_core.store import BaseStoreOptions

DATABASE: Final = "MONGODB_DATABASE"
"""Environment variable with the database of addresses that name none."""
_ADDRESS: Final = re.compile(r"(?i)^mongodb(?:\+srv)?://(?:[^/?#]*@)?([^/?#@]+)(?:/([^?#]*))?")
_UNSAFE: Final = re.compile(r'[/\\. "$*<>:|?\x00]')
"""Characters that no database has in its name."""


class MongoOptions(BaseStoreOptions):
    """Options of the store ``mongodb``."""

    schemes = ("mongodb", "mongodb+srv")

    url: str = Field(default="", validate_default=True)
    """Address of the server or replica set: ``mongodb://user:password@host:27017/database``, with
    the parameters of MongoDB's drivers, such as ``?replicaSet=rs0&tls=true``."""
    database: str | None = None
    """The database, if the address names none; by default that in ``MONGODB_DATABASE``."""
    transactions: Literal["auto", "always", "never"] = "auto"
    """``auto`` uses transactions if the server is a replica set or a cluster; ``always`` refuses a
    server that is neither; ``never`` writes in an order that a crash may interrupt."""
    pool_size: NonNegativeInt = 10
    """Connections that a process keeps open."""
    pool_max_overflow: NonNegativeInt = 20
    """Further connections that it opens under load."""
    pool_timeout_s: PositiveFloat = 30.0
    """How long a query waits for a free connection."""
    pool_recycle_s: PositiveFloat = 3600.0
    """A connection that was not used for this long is closed."""
    retry_s: PositiveFloat = 30.0
    """How long reads and writes wait for a server that is away; they then fail."""
    poll_s: PositiveFloat = 1.0
    """How often waiting callers look for writes of other processes, where the server has no change
    streams."""
    dead_after_s: PositiveFloat = 20.0
    """A process that gave no sign of life for this long counts as crashed: the next process that
    opens the store as the only one queues its running rollouts again."""

    @field_validator("url")
    @classmethod
    def _checked(cls, given: str) -> str:
        if not given:
            raise ValueError(
                "the store 'mongodb' needs url, such as mongodb://user:password@host/database"
            )
        if "\0" in given:
            raise ValueError("the address contains the character NUL")
        if re.search(r"[?&]tlsCertificateKeyFilePassword=", given, re.IGNORECASE):
            # The message of a ValueError would show the address, whose parameters are not hidden.
            raise ConfigError(
                "Configuration: store.url: the password of a key file would be shown with the "
                "address: give a key file without a password"
            )
        match = _ADDRESS.match(given)
        if match is None:
            raise ValueError("an address of MongoDB begins with mongodb:// or mongodb+srv://")
        if "@" in given[match.end(1) :].split("?", maxsplit=1)[0]:
            raise ValueError(
                "the user or the password contains one of / ? # @: write it as %2F, %3F, %23, %40"
            )
        return given

    @model_validator(mode="after")
    def _named(self) -> Self:
        name = self.database_name
        if not name:
            raise ValueError(
                f"no database is named: end store.url in /DATABASE, or set store.database or the "
                f"environment variable {DATABASE}"
            )
        if _UNSAFE.search(name) or len(name.encode(errors="replace")) > 63:  # noqa: PLR2004
            raise ValueError(
                f"{name!r} is no name of a database: it has at most 63 bytes, and none of "
                f'/ \\ . " $ * < > : | ? or space'
            )
        return self

    @property
    def database_name(self) -> str:
        """The database of the address, else that of the options or of the environment."""
        match = _ADDRESS.match(self.url)
        named = unquote(match[2] or "") if match else ""
        return named or self.database or os.environ.get(DATABASE, "")

    @property
    def pool_max(self) -> int:
        """Most connections of the pool: at least one to write and one to read."""
        return max(2, self.pool_size + self.pool_max_overflow)
