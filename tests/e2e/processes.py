"""The processes of a run, started as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agl_core.serving import ENV_KEY
from tests.installed import INSTALLED

ROOT = Path(__file__).parents[2]
HAND_SIZED = Path(__file__).with_name("hand_sized.py")


def settings(directory: Path, **sections: Any) -> Path:
    """The configuration of the hand-sized run as a file; sections go on top."""
    config: dict[str, Any] = {
        "name": "run",
        "directory": str(directory / "runs"),
        "agent": f"{HAND_SIZED}:run_agent",
        "agents": ["writer"],
        "model": "bandit",
        "plugins": [str(HAND_SIZED)],
        "tasks": {"train": f"{HAND_SIZED}:tasks"},
        "rewards": [{"name": f"{HAND_SIZED}:reward"}],
        "engine": {"name": "bandit"},
        "algorithm": {"name": "reinforce", "lr": 1.0, "group_size": 4},
        "train": {"steps": 3, "tasks_per_step": 2},
        "rollout": {"timeout_s": 600, "lease_s": 300},
    }
    for name, section in sections.items():
        if isinstance(section, dict):
            config[name] = {**config.get(name, {}), **section}
        else:
            config[name] = section
    file = directory / "run.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def free_ports(count: int) -> list[int]:
    """Different ones, free a moment ago; servers that are restarted need to know theirs.

    A port that is given back at once may be handed out again.
    """
    with contextlib.ExitStack() as probes:
        opened = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in opened:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in opened]


KEY = "a key that all of them share"


def environment(key: str = KEY, *, disabled: str = INSTALLED) -> dict[str, str]:
    return {
        **os.environ,
        ENV_KEY: key,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "AGL_DISABLE_PLUGINS": disabled,
        "OMP_NUM_THREADS": "1",
    }


class Process:
    """One ``agl`` command and what it says."""

    def __init__(
        self, log: Path, *arguments: str, key: str = KEY, disabled: str = INSTALLED
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "agl_core.cli", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(key, disabled=disabled),
                cwd=log.parent,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def until_it_says(self, text: str) -> None:
        while text not in self.said:
            assert self.popen.poll() is None, self.said
            time.sleep(0.02)

    def interrupt(self, number: int = signal.SIGINT) -> int:
        self.popen.send_signal(number)
        return self.popen.wait()

    def children(self) -> set[int]:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.popen.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return {int(line) for line in found.stdout.split()}

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
