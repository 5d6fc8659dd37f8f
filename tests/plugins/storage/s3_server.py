"""A server that speaks S3 over HTTP, in a process of its own."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import s3fs

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


class S3Server:
    """Moto's server; it keeps objects in memory."""

    def __init__(self, log: Path, **environ: str) -> None:
        self._log, self._environ = log, environ
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "key": "testing",
            "secret": "testing",
            "client_kwargs": {"region_name": ""},  # with us-east-1, buckets cannot be made
        }

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, **KEYS, **self._environ},
            )
        waited = threading.Event()
        for _ in range(2_400):
            assert self._process.poll() is None, self._log.read_text()
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                waited.wait(0.05)
        raise AssertionError(f"moto did not answer within 120 s: {self._log.read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def files(self) -> Any:
        return s3fs.S3FileSystem(**self.options, skip_instance_cache=True, use_listings_cache=False)
