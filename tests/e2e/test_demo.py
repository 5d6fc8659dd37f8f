"""The demo as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agl_demo.training import HELD_OUT_TASKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """`agl demo` in a process and a directory of its own: figures, output, directory."""
    directory = tmp_path_factory.mktemp("demo")
    figures = directory / "figures.json"
    line = [sys.executable, "-m", "agl_core.cli", "demo", "--json", str(figures)]
    done = subprocess.run(
        line, cwd=directory, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(figures.read_text()), done.stdout, directory


def test_the_writer_improves_beyond_doubt(demo: tuple[dict[str, Any], str, Path]) -> None:
    writer = demo[0]["agents"]["writer"]
    assert 0.05 <= writer["before"]["mean"] <= 0.5
    assert writer["before"]["high"] < writer["after"]["low"]
    assert writer["before"]["n"] == writer["after"]["n"] == HELD_OUT_TASKS


def test_the_planner_is_the_same_to_the_bit(demo: tuple[dict[str, Any], str, Path]) -> None:
    planner, writer = (demo[0]["policies"][name] for name in ("planner", "writer"))
    assert planner["sha256_before"] == planner["sha256_after"] == writer["sha256_before"]
    assert writer["sha256_after"] != writer["sha256_before"]


def test_the_figures_are_complete(demo: tuple[dict[str, Any], str, Path]) -> None:
    figures = demo[0]
    assert figures["wall_s"] > 0
    assert figures["calls"] > 0
    assert isinstance(figures["lost"], dict)
    assert (demo[2] / figures["best"] / "policies" / "writer" / "model.safetensors").is_file()


def test_the_output_shows_what_happened(demo: tuple[dict[str, Any], str, Path]) -> None:
    figures, output, _ = demo
    for score in figures["agents"]["writer"].values():
        assert f"{score['mean']:.3f}  [{score['low']:.3f}, {score['high']:.3f}]" in output
    assert "before: " in output
    assert "after: " in output
    assert "planner weights unchanged" in output


def test_the_trace_of_the_run_can_be_read(demo: tuple[dict[str, Any], str, Path]) -> None:
    figures, _, directory = demo
    line = [sys.executable, "-m", "agl_core.cli", "trace", figures["directory"], "--limit", "1"]
    done = subprocess.run(
        line, cwd=directory, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert "planner" in done.stdout
    assert "writer" in done.stdout
