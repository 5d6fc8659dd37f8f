"""Requests per second and latency through the gateway and through a plain proxy.

Every side runs in new processes for every window, in turn, so that a drift of the machine affects
all of them. Client and backend share the machine with the measured side; ``none`` is the client
directly on the backend, whose latency is part of the others'.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness

SIDES = ("ours", "plain", "none")
IN_FLIGHT = (1, 32, 256, 1000)
SECONDS = 2.0
FIGURES = (
    "requests_per_s",
    "p50_ms",
    "p99_ms",
    "failures",
    "clients_answered",
    "cpu_us_per_request",
    "rss_mb",
)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(python: str, script: str, *arguments: str) -> Generator[tuple[int, dict[str, Any]]]:
    """Run a script until its first line of output, JSON; yield its process id and that line."""
    line = [python, str(harness.HERE / script), *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            process.kill()


def cpu_s(pid: int | None) -> float:
    """Return the processor time that a process has used so far; 0.0 without one."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def rss_mb(pid: int | None) -> float:
    """Return the memory that a process holds; 0.0 without one."""
    if pid is None:
        return 0.0
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    )


def window(side: str, in_flight: int, peer: str) -> dict[str, Any]:
    """Measure one side at one load, with new processes."""
    with started(peer, "constant_backend.py") as (_, backend):
        url = f"http://127.0.0.1:{backend['port']}/v1"
        if side == "none":
            return _load(None, backend, in_flight, peer)
        if side == "plain":
            server = started(peer, "plain_proxy.py", url)
        else:
            server = started(sys.executable, "gateway_process.py", url, str(in_flight))
        with server as (pid, ready):
            return _load(pid, ready, in_flight, peer)


def _load(pid: int | None, ready: dict[str, Any], in_flight: int, peer: str) -> dict[str, Any]:
    line = [peer, str(harness.HERE / "load_client.py")]
    line += [f"http://127.0.0.1:{ready['port']}/v1/chat/completions"]
    line += [ready.get("api_key", "none"), str(in_flight), str(SECONDS)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps(ready.get("identities", [{}])))
        client.stdin.close()
        marks = [cpu_s(pid) for _ in range(2) if client.stdout.readline()]
        found = json.loads(client.stdout.readline())
    served = max(found["requests_per_s"] * SECONDS, 1)
    found["cpu_us_per_request"] = round(1e6 * (marks[1] - marks[0]) / served, 1)
    found["rss_mb"] = round(rss_mb(pid), 1)
    return found


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {
        "machine": harness.machine(),
        "settings": {
            "window_s": SECONDS,
            "ours": "GatewayServer over a memory store, in one process",
            "plain": "FastAPI, httpx, uvicorn with httptools and uvloop; records kept in a list",
            "none": "the client on the backend itself",
            "answers": "whole: 400 prompt tokens, 80 sampled ones with log-probabilities",
        },
    }
    peer = harness.peer_python("proxy")
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for in_flight in IN_FLIGHT:
        rows = samples[str(in_flight)] = {side: [] for side in SIDES}
        for number in range(rounds):
            for side in harness.in_turn(SIDES, number):
                rows[side].append(window(side, in_flight, peer))
                _say(in_flight, side, rows[side][-1])
    medians = {load: _medians(rows) for load, rows in samples.items()}
    harness.write(
        "gateway",
        report
        | {
            "samples": samples,
            "medians": medians,
            "added_ms": {load: _added(rows) for load, rows in medians.items()},
            "ratios": {f"rps_{load}": _ratio(rows) for load, rows in samples.items()},
        },
    )


def _medians(rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    return {
        side: {name: statistics.median(row[name] or 0.0 for row in found) for name in FIGURES}
        for side, found in rows.items()
    }


def _added(medians: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        side: {name: medians[side][name] - medians["none"][name] for name in ("p50_ms", "p99_ms")}
        for side in ("ours", "plain")
    }


def _ratio(rows: dict[str, list[dict[str, Any]]]) -> float:
    ours, plain = ([row["requests_per_s"] for row in rows[side]] for side in ("ours", "plain"))
    return harness.ratio(ours, [max(rate, 1e-9) for rate in plain])


def _say(in_flight: int, side: str, row: dict[str, Any]) -> None:
    harness.say(
        f"gateway    {in_flight:5d} in flight  {side:6s} {row['requests_per_s']:8.0f} req/s  "
        f"p50 {row['p50_ms'] or 0:8.2f} ms  cpu {row['cpu_us_per_request']:6.0f} us  "
        f"failures {row['failures']}"
    )
