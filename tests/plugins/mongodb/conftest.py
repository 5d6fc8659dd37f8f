"""A server per test process, and a database per test."""

import itertools
import os
import socket
from urllib.parse import urlsplit, urlunsplit

import pytest
from agl_mongodb import MongoOptions
from pymongo import MongoClient

from tests.plugins.mongodb.servers import MISSING, StandIn, stand_in

REAL = os.environ.get("AGL_TEST_MONGODB_URL")
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items):
    """The driver leaves the sockets of refused connections to the garbage collector."""
    unclosed = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    for item in items:
        if item.path.parent.name == "mongodb":
            item.add_marker(pytest.mark.filterwarnings(unclosed))


@pytest.fixture(scope="session")
def python():
    """A Python with the stand-in for a server."""
    found = stand_in()
    if found is None:
        if "CI" in os.environ:
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return found


@pytest.fixture(scope="session")
def url_of(request):
    """Return the address of a database of a server."""
    if REAL:
        parts = urlsplit(REAL)
        yield lambda name: urlunsplit(parts._replace(path=f"/{name}"))
        return
    server = StandIn(request.getfixturevalue("python"))
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def url(url_of):
    """The address of a database of the test's own."""
    address = url_of(f"agl_test_{os.getpid()}_{next(_numbers)}")
    yield address
    if REAL:
        with MongoClient(address) as client:
            client.drop_database(urlsplit(address).path[1:])


@pytest.fixture(params=["transactions", "ordered"])
def options(request, url):
    """Options with and without transactions."""
    transactions = request.param == "transactions"
    return MongoOptions(
        url=url,
        transactions="always" if transactions else "never",
        pool_size=1,
        pool_max_overflow=5,
        poll_s=0.05,
        retry_s=10.0,
    )


@pytest.fixture
def free_port():
    """A port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
