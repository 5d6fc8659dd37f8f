"""`tests/gpu/programs.sh` without a GPU: one step of each program, by a tiny random model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.programs.running import ROOT


@pytest.mark.parametrize("name", ["12_werewolf", "13_sql"])
def test_a_program_makes_a_step_with_random_weights(tmp_path, name):
    if not (ROOT / "examples" / name / "run.toml").is_file():
        pytest.skip(f"there is no examples/{name}")
    environment = {
        **os.environ,
        "AGL_DEVICE": "cpu",
        "AGL_EXAMPLES": name,
        "PYTHON": sys.executable,
    }
    for variable in ("AGL_SHAPE", "AGL_DRY"):
        environment.pop(variable, None)
    done = subprocess.run(
        ["bash", str(ROOT / "tests" / "gpu" / "programs.sh"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert len(report["steps"]) == 1
