"""Starts `retriever.py` as a process that ends with this one."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from retriever import SERVING

SCRIPT = Path(__file__).with_name("retriever.py")
START_S, END_S = 300.0, 5.0
"""Time limits of the start, on a busy machine, and of the end."""


class RetrieverStartError(Exception):
    """The retriever's process has not started."""

    def __init__(self, said: str, code: int | None) -> None:
        """Keep what the process wrote, and its exit status."""
        super().__init__(f"the retriever did not start (exit status {code}): {said.strip()}")


class RetrieverProcess:
    """A retriever at a free port, started at first use and again where it has ended since.

    The process ends when its standard input is closed, which the system does at the latest when
    this process ends, however it ends. Calls from several threads are safe.
    """

    def __init__(self, index: Path) -> None:
        """Take the file of the index."""
        self.index = index
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        atexit.register(self.stop)

    def url(self) -> str:
        """Return the address of the running server; start it if there is none.

        Raises:
            RetrieverStartError: it ended before it served; the message has what it wrote.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            return self._url

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _start(self) -> None:
        if self._process is not None:
            _end(self._process)
        with tempfile.TemporaryFile() as errors:
            options = ["--index", self.index, "--port", "0", "--until-input-ends"]
            process = subprocess.Popen(  # noqa: S603  the script of this folder
                [sys.executable, SCRIPT, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl+C ends the rollouts first; they still search.
                start_new_session=True,
            )
            limit = threading.Timer(START_S, process.kill)
            limit.start()
            said = _pipe(process.stdout).readline().decode()
            limit.cancel()
            if not said.startswith(SERVING):
                _end(process)
                errors.seek(0)
                written = said + errors.read().decode(errors="replace")
                raise RetrieverStartError(written, process.returncode)
        self._process, self._url = process, said.removeprefix(SERVING).strip()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):
        _pipe(process.stdin).close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _pipe(process.stdout).close()
