"""The example of the plain client runs as it stands, and trains the agent it names."""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "01_plain_client"

ONE_STEP = """
import json, runpy, sys
import agl_core as agl
sys.path.insert(0, {folder!r})
train = runpy.run_path({folder!r} + "/train.py", run_name="example")
report = agl.train(
    train["run_agent"],
    train["train_tasks"],
    reward=train["reward"],
    config={folder!r} + "/run.toml",
    overrides={{
        "directory": {runs!r},
        "tasks.val": None,
        "train.steps": 1,
        "train.tasks_per_step": 4,
    }},
)
print(json.dumps({{
    "calls": report.calls,
    "lost": report.lost,
    "trained": report.policies["trained"],
    "frozen": report.policies["frozen"],
    "exported": report.export({runs!r} + "/out"),
}}))
"""


def test_a_step_of_the_example_trains_the_writer_only(tmp_path):
    script = ONE_STEP.format(folder=str(FOLDER), runs=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    # The writer is not asked where the planner erred.
    assert 32 < report["calls"] <= 64
    assert report["trained"]["sha256_before"] != report["trained"]["sha256_after"]
    assert report["frozen"]["sha256_before"] == report["frozen"]["sha256_after"]
    assert (Path(report["exported"]) / "trained" / "model.safetensors").is_file()


def test_the_program_knows_no_trainer():
    text = (FOLDER / "agent.py").read_text(encoding="utf-8")
    assert "import agl_core" not in text
    assert "from agl_core" not in text
