"""The example of other languages runs as it stands, and trains the writer of either program."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[2] / "examples" / "09_any_language" / "run.toml"


def needs(program):
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"needs {program} on the PATH for the example"
    )


@pytest.mark.parametrize(
    ("agent", "calls"),
    [
        # The writer is not asked where the planner erred.
        pytest.param("run_node", range(17, 33), marks=needs("node")),
        pytest.param("run_shell", range(16, 17), marks=needs("curl")),
    ],
)
def test_a_step_of_the_example_trains_the_writer_only(tmp_path, agent, calls):
    line = [sys.executable, "-m", "agl_core.cli", "train", str(CONFIG), "--json", "report.json"]
    for setting in (
        f"agent={CONFIG.with_name('train.py')}:{agent}",
        "tasks.val=null",
        "train.steps=1",
        "train.tasks_per_step=2",
    ):
        line += ["--set", setting]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["calls"] in calls
    assert report["lost"].keys() <= {"agents_absent", "groups_without_signal"}
    trained, frozen = report["policies"]["trained"], report["policies"]["frozen"]
    assert trained["sha256_before"] != trained["sha256_after"]
    assert frozen["sha256_before"] == frozen["sha256_after"]
