"""The server and the connection pooler of the distribution, with the whole contract of stores."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from agl_postgres import PostgresOptions
from agl_postgres._connect import Server as Address
from agl_postgres._schema import migrate

from tests.plugins.events import distribution
from tests.plugins.postgres.servers import Server, free_port
from tests.plugins.postgres.test_contract import TestPostgres as Contract

PATIENCE_S = 60
POOLER = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture(scope="module")
def server():
    server = Server(Path(distribution.server("postgres", "postgresql")).parent)
    try:
        server.create()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def template(server):
    name = server.database()
    migrate(Address.of(PostgresOptions(url=server.url(name))))
    return name


@pytest.fixture(scope="module")
def pooler(server, tmp_path_factory):
    """The port of a pooler before the server."""
    program = distribution.server("pgbouncer", "pgbouncer")
    port = free_port()
    file = tmp_path_factory.mktemp("pooler") / "pgbouncer.ini"
    file.write_text(POOLER.format(server=server.port, port=port))
    file.chmod(0o644)
    command = [program, "/dev/stdin"]
    with file.open() as settings, (file.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=settings, stdout=log, stderr=log, cwd="/", **server.user
        )
    ready = [
        server.programs / "pg_isready",
        "-q",
        "-t",
        "1",
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    try:
        while subprocess.run(ready, check=False).returncode:
            assert process.poll() is None, (file.parent / "log").read_text()
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


class TestServer(Contract):
    """The contract on the distribution's server, which is older than that of the wheel."""


class TestPooler(Contract):
    """The contract through PgBouncer, whose clients share connections by transaction."""

    @pytest.fixture
    def options(self, server, database, pooler):
        return PostgresOptions(
            url=f"postgresql://postgres@127.0.0.1:{pooler}/{database}",
            listen_url=server.url(database),
            prepared_statements=False,
            pool_size=1,
            pool_max_overflow=5,
        )
