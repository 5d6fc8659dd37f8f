"""The example on a CPU, its server killed, its driver killed, and resumed: it learns all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
RUN = ROOT / "examples" / "03_verl_cpu" / "run.toml"
MODEL = ROOT / "examples" / "agl_demo" / "model"
STEPS = 30
GAIN = 0.25
"""Of the mean reward, between the first five steps and the last five."""
LEAVING_S = 120.0


@contextmanager
def started(directory: Path, *settings: str, run: Path = RUN) -> Iterator[subprocess.Popen[str]]:
    """`agl train` on an example; ended at the latest with the block, and all it started too."""
    given = (f"directory={directory}", "name=run", "tasks.val=null", *settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "agl_core.cli", "train", str(run)]
        + ["--json", str(directory / "report.json")]
        + [part for each in given for part in ("--set", each)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    )
    family: list[psutil.Process] = []
    try:
        yield process
        family = _family(process.pid)
    finally:
        family = family or _family(process.pid)
        process.kill()
        process.communicate()
        for each in psutil.wait_procs(family, timeout=1)[1]:
            each.kill()


def _family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True) if psutil.pid_exists(pid) else []


def until(process: subprocess.Popen[str], beginning: str) -> list[str]:
    """What the run prints up to the line that begins so."""
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith(beginning):
            return seen
    raise AssertionError("".join(seen))


def server_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The Ray actor that serves the trained policy: the first of the two."""
    servers = [each for each in _family(process.pid) if "CpuServer" in " ".join(each.cmdline())]
    return min(servers, key=psutil.Process.create_time)


def test_it_learns_although_server_and_driver_are_killed(tmp_path: Path) -> None:
    with started(tmp_path, f"train.steps={STEPS}", "train.checkpoint_every=5") as process:
        until(process, "step 3/")
        server_of(process).send_signal(signal.SIGKILL)
        until(process, "step 7/")
        family = _family(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert psutil.wait_procs(family, timeout=LEAVING_S)[1] == []

    resumed = (f"train.steps={STEPS}", "train.checkpoint_every=15", "train.resume=true")
    with started(tmp_path, *resumed) as process:
        told = until(process, "weights ")
        assert process.wait() == 0, "".join(told)

    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [step["step"] for step in report["steps"]] == list(range(1, STEPS + 1))
    assert all(step["rollouts"] == 32 for step in report["steps"])
    assert report["reward"]["last"] - report["reward"]["first"] > GAIN
    assert report["rows"]["by_agent"].keys() == {"writer"}
    assert report["seconds_per_step"] > 0
    assert "rollouts_abandoned" in report["lost"]
    (trained,) = (one for one in report["policies"].values() if one["trainable"])
    (frozen,) = (one for one in report["policies"].values() if not one["trainable"])
    assert trained["sha256_before"] != trained["sha256_after"]
    assert frozen["sha256_before"] == frozen["sha256_after"]
    assert report["calls"] > 2 * sum(report["rows"]["by_agent"].values()) * 0.9
    _trained_apart_from_base(Path(trained["path"]))


def _trained_apart_from_base(directory: Path) -> None:
    AutoTokenizer.from_pretrained(directory)
    AutoModelForCausalLM.from_pretrained(directory)
    base, made = load_file(MODEL / "model.safetensors"), load_file(directory / "model.safetensors")
    assert any(not base[name].float().equal(made[name].float()) for name in base)
