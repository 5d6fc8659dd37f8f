"""The demo with a real small model, for those who ask for it: it fetches weights and takes minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agl_demo.training import FEW_HELD_OUT_TASKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("AGL_TEST_SMOLLM2" not in os.environ, reason="set AGL_TEST_SMOLLM2=1"),
]


def test_a_real_writer_improves_beyond_doubt_and_the_planner_stays(tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "agl_core.cli",
        "demo",
        "--model",
        "smollm2",
        "--json",
        "out.json",
    ]
    done = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    writer = figures["agents"]["writer"]
    assert writer["before"]["high"] < writer["after"]["low"]
    assert writer["before"]["n"] == writer["after"]["n"] == FEW_HELD_OUT_TASKS
    trained, planner = figures["policies"]["writer"], figures["policies"]["planner"]
    assert planner["sha256_before"] == planner["sha256_after"] != trained["sha256_before"]
    assert trained["sha256_after"] != trained["sha256_before"]
    weights = tmp_path / figures["best"] / "policies" / "writer"
    assert (weights / "model.safetensors").is_file()
    assert (weights / "adapter" / "adapter_model.safetensors").is_file()
    assert f"agl serve {figures['best']}" in done.stdout
