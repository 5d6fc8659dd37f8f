"""Requests per second through the gateway and through a plain proxy, side by side.

``python tests/benchmarks/bench_gateway.py`` with fastapi, httpx, httptools and uvloop installed
beside agl-core (``--peer-python`` names another interpreter for the plain proxy). Every side runs in
a fresh process for every window, in turn, so that a machine that drifts drifts under all of them.
Client and backend share the machine with whatever is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "docs" / "benchmarks" / "gateway.json"
SIDES = ("gateway", "gateway-uvloop", "plain")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(python: str, script: str, *arguments: str) -> Generator[tuple[int, dict[str, Any]]]:
    """Run a script until its first line of output, JSON; gives its process id and that line."""
    line = [python, str(HERE / script), *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            process.kill()


def cpu_s(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def rss_mb(pid: int) -> float:
    """Memory that a process holds."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    )


def window(side: str, in_flight: int, options: argparse.Namespace) -> dict[str, Any]:
    """One side at one load, all processes fresh."""
    with started(sys.executable, "constant_backend.py") as (_, backend):
        url = f"http://127.0.0.1:{backend['port']}/v1"
        if side == "plain":
            server = started(options.peer_python, "plain_proxy.py", url)
        else:
            flags = ["--uvloop"] if side.endswith("uvloop") else []
            server = started(sys.executable, "gateway_process.py", url, str(in_flight), *flags)
        with server as (pid, ready):
            return _load(pid, ready, in_flight, options)


def _load(
    pid: int, ready: dict[str, Any], in_flight: int, options: argparse.Namespace
) -> dict[str, Any]:
    line = [sys.executable, str(HERE / "load_client.py")]
    line += [f"http://127.0.0.1:{ready['port']}/v1/chat/completions"]
    line += [ready.get("api_key", "none"), str(in_flight), str(options.seconds)]
    line += ["--stream"] if options.stream else []
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps(ready.get("identities", [{}])))
        client.stdin.close()
        marks = [cpu_s(pid) for _ in range(2) if client.stdout.readline()]
        found = json.loads(client.stdout.readline())
    served = max(found["requests_per_s"] * options.seconds, 1)
    found["cpu_us_per_request"] = 1e6 * (marks[1] - marks[0]) / served
    found["rss_mb"] = rss_mb(pid)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every load, every round, every side."""
    results: dict[str, Any] = {}
    for in_flight in options.in_flight:
        samples: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
        for number in range(options.rounds):
            order = options.sides if number % 2 == 0 else options.sides[::-1]
            for side in order:
                samples[side].append(window(side, in_flight, options))
                _say(f"{in_flight:5d} in flight  {side:15s}", samples[side][-1])
        results[str(in_flight)] = summary(samples)
        for side, ratio in results[str(in_flight)]["ratios"].items():
            sys.stderr.write(f"{in_flight:5d} in flight  {side:15s} {ratio:.1f} x plain\n")
    return results


def summary(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians per side, and the median of the per-round ratios to the plain proxy."""
    names = ("requests_per_s", "p50_ms", "p99_ms", "cpu_us_per_request", "rss_mb")
    medians = {
        side: {name: statistics.median(row[name] or 0.0 for row in rows) for name in names}
        for side, rows in samples.items()
    }
    plain = samples.get("plain", [])
    ratios = {
        side: statistics.median(
            row["requests_per_s"] / max(base["requests_per_s"], 1e-9)
            for row, base in zip(rows, plain, strict=True)
        )
        for side, rows in samples.items()
        if plain and side != "plain"
    }
    return {"medians": medians, "ratios": ratios, "samples": samples}


def _say(label: str, row: dict[str, Any]) -> None:
    sys.stderr.write(
        f"{label} {row['requests_per_s']:8.0f} req/s  p50 {row['p50_ms'] or 0:8.2f} ms  "
        f"cpu {row['cpu_us_per_request']:6.0f} us  failures {row['failures']}\n"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 32, 256, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    load_before = os.getloadavg()
    report = {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": load_before,
        },
        "settings": {
            "streamed": options.stream,
            "rounds": options.rounds,
            "seconds": options.seconds,
        },
        "in_flight": measure(options),
    }
    output = options.output or RESULT
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
