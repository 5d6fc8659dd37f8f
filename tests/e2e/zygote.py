"""A warm parent: forks processes that have everything imported, at a fraction of a start's cost.

Each child is a process like any other that runs ``agl`` with arguments of its own; only the
interpreter's start and the imports are saved, so that hundreds can be killed in minutes. Requests
and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

WARM = (
    "agl_remote._runner",
    "agl_core.cli.group",
    "agl_remote._runner_serve",
    "agl_remote._store_serve",
    "agl_core.cli.train",
    "agl_remote._gateway_client",
    "agl_remote._gateway_serve",
    "agl_remote._store_client",
    "agl_remote._store_server",
    "agl_core.store._sqlite",
    "agl_core.training.algorithms",
    "aiohttp",
    "httpx",
    "rich.console",
    "tests.core.bandit_engine",
)


class Zygote:
    """The test's end."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        self._ask({"do": "ready"})

    def start(self, arguments: list[str], log: Path) -> int:
        """Start ``agl`` with arguments; returns its process id."""
        return self._ask({"do": "start", "arguments": arguments, "log": str(log)})

    def poll(self, pid: int) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        return self._ask({"do": "poll", "pid": pid})

    def wait(self, pid: int) -> int:
        """The same, once it has ended."""
        return self._ask({"do": "wait", "pid": pid})

    def close(self) -> None:
        """Kill whatever still runs, though it be waiting for one that never ends."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._process.stdin.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    import importlib

    for module in WARM:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(_answer(request)) + "\n")
        sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)  # the test was killed: nobody else ends what it started


def _answer(request: dict[str, Any]) -> int | None:
    if request["do"] == "start":
        return _start(request["arguments"], request["log"])
    if request["do"] == "ready":
        return 0
    options = os.WNOHANG if request["do"] == "poll" else 0
    pid, status = os.waitpid(request["pid"], options)
    return os.waitstatus_to_exitcode(status) if pid else None


def _start(arguments: list[str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(arguments, log)
    finally:
        os._exit(99)


def _become(arguments: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["agl", *arguments]
    from agl_core.cli import main

    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it was
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(98)


if __name__ == "__main__":
    _serve()
