"""``agl train`` with all trackers: what a user types, and what is there afterwards."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[3]
RUN = """
name = "tracked"
agent = "{agent}:two_agents"
agents = ["writer"]
model = "bandit"
engine = "bandit"
store = "memory"
plugins = ["{root}/tests/core/app/bandit_plugin.py"]

[tasks]
train = "{agent}:tasks"
val = "{agent}:tasks"

[[rewards]]
name = "{agent}:says_yes"

[algorithm]
name = "reinforce"
lr = 1.0
group_size = 2

[train]
steps = 2
tasks_per_step = 2

[[trackers]]
name = "tensorboard"

[[trackers]]
name = "wandb"
mode = "offline"

[[trackers]]
name = "mlflow"
"""
AGENT = """
from tests.core.app.conftest import says_yes, two_agents

__all__ = ["says_yes", "two_agents"]

def tasks():
    return [{"input": number} for number in range(2)]
"""


@pytest.mark.timeout(300)  # two processes that import all of it
def test_a_run_is_in_all_of_them(tmp_path: Path, empty_mlflow: Path) -> None:
    directory = tmp_path / "agl_runs" / "tracked"
    directory.mkdir(parents=True)
    shutil.copy(empty_mlflow, directory.parent / "mlflow.db")
    (tmp_path / "program.py").write_text(AGENT, encoding="utf-8")
    text = RUN.replace("{agent}", "program.py").replace("{root}", ROOT.as_posix())
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    train(tmp_path)
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    assert not [cause for cause in report["lost"] if cause.startswith("tracker_")]
    rewards = {step["step"]: step["reward"] for step in report["steps"]}
    assert in_tensorboard(directory) == rewards
    assert in_mlflow(directory) == rewards
    assert list(directory.glob("wandb/offline-run-*/run-*.wandb"))
    one = 'trackers=[{"name": "tensorboard"}]'
    train(tmp_path, "--set", "train.resume=true", "--set", "train.steps=3", "--set", one)
    assert list(in_tensorboard(directory)) == [1, 2, 3]


def train(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "agl_core.cli", "train", "run.toml", *arguments]
    given = {key: value for key, value in os.environ.items() if key != "WANDB_API_KEY"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**given, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def in_tensorboard(directory: Path) -> dict[int, float]:
    shown = EventAccumulator(str(directory / "tensorboard"))
    shown.Reload()
    return {event.step: event.value for event in shown.Scalars("reward")}


def in_mlflow(directory: Path) -> dict[int, float]:
    client = MlflowClient(tracking_uri=f"sqlite:///{directory.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("agl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward")
    return {metric.step: metric.value for metric in history}
