"""The page of rollouts in Chromium, compared with the same page in NiceGUI and agentlightning's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import harness

ROLLOUTS = int(os.environ.get("AGL_BENCH_ROLLOUTS", "1000000"))
PEER_ROLLOUTS = min(ROLLOUTS, 10_000)
"""Rollouts of agentlightning's page, whose store is in memory."""
TURNS = 5
PEER = "agentlightning"
SETTINGS = {
    "ours": f"{ROLLOUTS:,} ended rollouts in SQLite; the page of 50 rows from the finished index",
    "nicegui": "NiceGUI 3.18.0: a table of 50 rows with the same columns from the same index",
    PEER: f"its dashboard, which shows 100 rows, over its store in memory of {PEER_ROLLOUTS:,} queued "
    "rollouts, as more take long to enter",
    "empty": "milliseconds from opening the address in a new browser until rows are painted",
    "cached": "the same once more in that browser",
    "turn": "milliseconds from the click on the next page until its first row is painted",
    "build": "seconds from opening the page without an index until it lists all rollouts, and until "
    "rewards, tokens and words of all are in it",
}
TARGETS_MS = {"empty": 700, "turn": 200}
"""On a machine that does nothing else."""
PAGES = {
    "ours": ("/run/run/-/rollouts", "tr[data-row]", "a[rel=next][href]"),
    "nicegui": ("/", ".q-table tbody tr", "button.next"),
    PEER: (
        "/rollouts",
        "tbody tr.mantine-datatable-row",
        "button[aria-label='Next page']:not([disabled])",
    ),
}
"""Of each side: path, selector of a row, and of the button that turns the page."""


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report: dict[str, Any] = {"machine": harness.machine(), "settings": SETTINGS}
    report |= {"rollouts": ROLLOUTS, "peer_rollouts": PEER_ROLLOUTS, "targets_ms": TARGETS_MS}
    own = harness.peer_python("dashboard", extra="dashboard")
    with harness.folder() as directory, ExitStack() as stack:
        folder = Path(directory)
        report["generated_s"] = generated(own, folder / "run")
        line = (own, "-m", "agl_core.cli", "dashboard", str(folder / "run"))
        options = ("--index", str(folder / "index"), "--port")
        urls = {"ours": stack.enter_context(served(*line, *options))}
        report["build"] = built(urls["ours"], folder / "index")
        (index,) = (folder / "index").glob("*.db")
        nicegui = (harness.peer_python("nicegui"), script("nicegui_side.py"), str(index))
        urls["nicegui"] = stack.enter_context(served(*nicegui))
        peer = (harness.peer_python(PEER), script("agentlightning_page.py"), str(PEER_ROLLOUTS))
        urls[PEER] = stack.enter_context(served(*peer))
        with harness.workers(browser=(own, "browser_side.py")) as asked:
            samples = measured(asked["browser"], urls, rounds)
    harness.write("dashboard", report | summary(samples))


def script(name: str) -> str:
    return str(harness.HERE / name)


def generated(python: str, folder: Path) -> float:
    """Write the store and return the seconds that it took."""
    folder.mkdir()
    begin = time.perf_counter()
    line = [python, script("dashboard_store.py"), str(folder / "store.db"), str(ROLLOUTS)]
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    subprocess.run(line, check=True, env=environment)
    harness.say(f"dashboard  {ROLLOUTS:,} rollouts written")
    return time.perf_counter() - begin


@contextmanager
def served(*line: str) -> Generator[str]:
    """Start a server with a free port as its last argument, and yield its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*line, str(port)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **harness.OFFLINE},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while not answers(url):
            if process.poll() is not None:
                raise RuntimeError(f"{line} ended before it answered")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=60).close()
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def built(url: str, folder: Path) -> dict[str, float]:
    """Follow the index until it is finished; return seconds, and its bytes."""
    begin = time.perf_counter()
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{url}/events/run", timeout=3600) as stream:
        for line in stream:
            if not line.startswith(b"data:"):
                continue
            state = json.loads(line.partition(b":")[2])
            if state["rows"] == ROLLOUTS:
                found.setdefault("rows_s", time.perf_counter() - begin)
                if not state["uncounted"]:
                    break
    found["all_s"] = time.perf_counter() - begin
    found["bytes"] = sum(each.stat().st_size for each in folder.glob("*.db*"))
    harness.say(f"dashboard  index {json.dumps(found)}")
    return found


def measured(
    browser: harness.Worker, urls: dict[str, str], rounds: int
) -> dict[str, harness.Samples]:
    """Return milliseconds by what and side; one sample per round and side."""
    samples: dict[str, harness.Samples] = {"empty": {}, "cached": {}, "turn": {}}
    for number in range(rounds):
        for side in harness.in_turn(list(urls), number):
            path, row, button = PAGES[side]
            found = browser.ask("visit", url=urls[side] + path, row=row, button=button, turns=TURNS)
            found["turn"] = sorted(found["turns"])[TURNS // 2]
            for what, own in samples.items():
                own.setdefault(side, []).append(found[what])
            harness.say(f"dashboard  {side:15s} {json.dumps(found)}")
    return samples


def summary(samples: dict[str, harness.Samples]) -> dict[str, Any]:
    return {
        "unit": "milliseconds; ratios: ours / theirs",
        "samples": samples,
        "medians": {what: harness.medians(found) for what, found in samples.items()},
        "ratios": {
            what: {
                side: harness.ratio(found["ours"], theirs)
                for side, theirs in found.items()
                if side != "ours"
            }
            for what, found in samples.items()
        },
    }
