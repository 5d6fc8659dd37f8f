"""The plugin's hooks: the store ``postgres`` and the command ``agl store migrate``."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_stores(register: Register) -> None:
    register(
        "postgres",
        "agl_postgres._store:make_store",
        extra="postgres",
        config="agl_postgres._options:PostgresOptions",
        summary="a PostgreSQL database, which several processes and machines may use",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "store.migrate",
        "agl_postgres._command:command",
        summary="create or update the tables of a store in a database",
    )
