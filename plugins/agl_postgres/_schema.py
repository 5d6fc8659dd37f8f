"""The tables' version: checked whenever a store opens, created and migrated by alembic.

Alembic takes seconds to import, so a store that finds its tables never imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

from agl_core.errors import StoreError
from agl_postgres._connect import Server

VERSION: Final = 1
"""Version of the tables that this release reads and writes."""
VERSIONS: Final = "agl_versions"
"""Table with the version."""
_OLDEST_SERVER: Final = 140_000
_LOCK: Final = 4_740_331


def check_tables(server: Server, *, create: bool = True) -> None:
    """Check server and tables; create the tables in a database without them.

    Raises:
        StoreError: the server is too old, its database has another encoding or tables of another
            version, or has none and `create` is False.
        psycopg.Error: the database cannot be used.
    """
    with server.connect() as connection:
        _check_server(server, connection)
        found = _version(server, connection)
    if found == 0 and create:
        migrate(server)
    elif found == 0:
        raise StoreError(f"There is no store at {server.shown.address}: its database has no tables")
    elif found < VERSION:
        raise StoreError(
            f"The store at {server.shown.address} was written by an older agl-core (tables of "
            f"version {found}, this one needs {VERSION}): run agl store migrate with this address "
            f"while no other process uses the store"
        )


def migrate(server: Server) -> tuple[int, int]:
    """Create or update the tables; return their version before and after.

    Of several processes that migrate, one does it, and the others wait for it.

    Raises:
        StoreError: the tables are newer than this release, or another process migrates for too
            long.
        psycopg.Error: the database cannot be used.
    """
    with server.connect(lock_timeout_s=server.migrate_timeout_s) as connection:
        _check_server(server, connection)
        connection.execute("SELECT pg_advisory_lock(%s, 0)", [_LOCK])
        before = _version(server, connection)
        if before < VERSION:
            _upgrade(server)
        return before, _version(server, connection)


def _check_server(server: Server, connection: psycopg.Connection[Any]) -> None:
    where, number = server.shown.address, connection.info.server_version
    if number < _OLDEST_SERVER:
        raise StoreError(
            f"The server at {where} is PostgreSQL {number // 10_000}: version 14 or later is needed"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"The database at {where} has the encoding {encoding}: create one with ENCODING 'UTF8'"
        )
    (schema,) = connection.execute("SELECT current_schema()").fetchall()[0]
    if schema is None:
        raise StoreError(
            f"The database at {where} has no schema of its search_path: create the schema, or "
            f"correct search_path"
        )


def _version(server: Server, connection: psycopg.Connection[Any]) -> int:
    """Return the tables' version; 0 without tables.

    Raises:
        StoreError: it is later than this release knows.
    """
    (table,) = connection.execute("SELECT to_regclass(%s)::text", [VERSIONS]).fetchall()[0]
    row = table and connection.execute("SELECT max(version_num) FROM agl_versions").fetchone()
    if not row or row[0] is None:
        return 0
    if not row[0].isdecimal() or int(row[0]) > VERSION:
        raise StoreError(
            f"The store at {server.shown.address} was written by a newer agl-core (tables of "
            f"version {row[0]}, this one reads up to {VERSION}): upgrade agl-core or choose "
            f"another database"
        )
    return int(row[0])


def _upgrade(server: Server) -> None:
    from alembic import command  # noqa: PLC0415  takes seconds
    from alembic.config import Config  # noqa: PLC0415
    from sqlalchemy import create_engine  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: server.connect(autocommit=False),
        poolclass=NullPool,
    )
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("_migrations")))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from None
        raise
    finally:
        engine.dispose()
