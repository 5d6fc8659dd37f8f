"""Storages: a real server that speaks S3, and the memory of this process."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from tests.core.app.conftest import bench
from tests.plugins.storage.s3_server import KEYS, S3Server

__all__ = ["bench"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: Any) -> Iterator[S3Server]:
    """One server for all tests of a process; a test takes a bucket of its own."""
    server = S3Server(tmp_path_factory.mktemp("moto") / "log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own(tmp_path: Any) -> Iterator[S3Server]:
    """A server for one test, which may stop it."""
    server = S3Server(tmp_path / "moto.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def bucket(server: S3Server) -> str:
    name = f"b{uuid4().hex[:12]}"
    server.files().mkdir(name)
    return name


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()
