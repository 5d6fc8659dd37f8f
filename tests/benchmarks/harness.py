"""Shared parts of the benchmarks: worker processes, peers' environments, a report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
PEERS = ROOT / ".tox" / "bench-peers"

OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
"""Disables network access of peers, which would wait for data that the benchmarks do not need."""

Samples = dict[str, list[float]]
"""Raw measurements by side."""


def machine() -> dict[str, Any]:
    """Return the machine and its load, which every figure depends on."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peer_python(name: str, *, extra: str | None = None) -> str:
    """Return the interpreter of a peer's own environment, which is created on first use.

    With `extra`, the environment also contains this checkout with that extra.
    """
    requirements = HERE / "peers" / f"{name}.txt"
    folder = PEERS / name
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = folder / requirements.name
    if not done.exists() or done.read_text() != requirements.read_text():
        say(f"installing the peer {name} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        line = [python, "-m", "pip", "install", "--quiet", "-r", requirements]
        line += ["-e", f"{ROOT}[{extra}]"] if extra else []
        subprocess.run(line, check=True)
        shutil.copyfile(requirements, done)
    return str(python)


class Worker:
    """A process that runs `worker.serve`."""

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **OFFLINE},
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        """Run one action in the process and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args} ended while asked to {do}")
        return json.loads(answer)["found"]

    def close(self) -> None:
        """End the process within a minute."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()


@contextmanager
def workers(**sides: tuple[str, ...]) -> Generator[dict[str, Worker]]:
    """Start one process per side, given its interpreter, script and the script's arguments."""
    started = {side: Worker(*line) for side, line in sides.items()}
    try:
        yield started
    finally:
        for worker in started.values():
            worker.close()


@contextmanager
def folder() -> Generator[str]:
    """Yield a temporary folder on a disk: many systems keep theirs in memory."""
    parent = os.environ.get("AGL_BENCH_DIR") or ROOT / ".tox"
    Path(parent).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield directory


def in_turn(sides: Sequence[str], round_number: int) -> Sequence[str]:
    """Return the order of a round: every second one reversed, so that no side is always first."""
    return sides if round_number % 2 == 0 else sides[::-1]


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each side."""
    return {side: statistics.median(values) for side, values in samples.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over the rounds of ours / theirs: a slow round slows both down."""
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def write(name: str, report: Mapping[str, Any]) -> None:
    """Write a benchmark's figures into the documentation's folder."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    page.write()
    say(f"wrote {path.relative_to(ROOT)}")


def say(text: str) -> None:
    """Print the progress."""
    sys.stderr.write(text + "\n")
