"""`constraints/gpu.txt`: within the ranges of pyproject.toml, and what the documents and scripts say."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPT = ROOT / "constraints" / "install_gpu.sh"


def pinned(name):
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(each.specifier).startswith("==") for each in found)
    return {canonicalize_name(each.name): str(each.specifier)[2:] for each in found}


def needed(extra):
    for line in PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]:
        one = Requirement(line)
        if one.name == "agl-core":
            for other in one.extras:
                yield from needed(other)
        elif one.marker is None or one.marker.evaluate({"sys_platform": "linux"}):
            yield one


def dry(*arguments, **variables):
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={**os.environ, "AGL_DRY": "1", **variables},
        check=True,
        capture_output=True,
        text=True,
    )
    return [line.replace("\\", "").strip() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("extra", ["", "openai", "torch", "verl", "vllm"])
def test_versions_for_gpus_are_within_the_ranges(extra):
    versions = pinned("gpu.txt")
    for one in needed(extra):
        assert versions[canonicalize_name(one.name)] in one.specifier, one


def test_the_page_names_the_versions():
    page = (ROOT / "docs" / "gpu.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+) \| ([\d.a-z]+)[ ,]", page, re.MULTILINE)
    versions = pinned("gpu.txt")
    assert {name: versions[name.lower()] for name, _ in rows} == dict(rows)
    assert {"torch", "verl", "vLLM", "transformers", "flash-attn"} <= dict(rows).keys()


def test_one_torch_is_installed_first_and_flash_attention_last():
    lines = dry("place")
    installs = [line for line in lines if " install -c constraints/gpu.txt" in line]
    assert installs[0].endswith("torch")
    assert "agl" not in installs[0]
    assert ".[torch,verl,vllm,openai]" in installs[1]
    assert installs[2].endswith("--no-build-isolation flash-attn")
    assert all(line.startswith(("python3.12", "place/bin/python")) for line in lines)
    assert not any("flash-attn" in line for line in dry(AGL_FLASH_ATTN="0"))
    assert any("vllm,langchain]" in line for line in dry(AGL_EXTRAS="langchain"))


def test_nothing_is_installed_without_a_driver(tmp_path):
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    done = subprocess.run(
        ["/bin/bash", str(SCRIPT), str(tmp_path / "venv")],
        env={"PATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "install NVIDIA's driver first" in done.stderr) == (1, True)
    assert not (tmp_path / "venv").exists()


def test_the_programs_of_the_gpu_script_are_named_when_they_are_missing(tmp_path):
    done = subprocess.run(
        ["bash", str(ROOT / "tests" / "gpu" / "programs.sh"), str(tmp_path)],
        env={
            **os.environ,
            "AGL_DEVICE": "cuda",
            "AGL_DRY": "1",
            "AGL_EXAMPLES": "12_werewolf 99_nothing",
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    command, missing, last = done.stdout.splitlines()
    assert "train examples/12_werewolf/gpu.toml" in command
    assert "train.steps=1" in command
    assert missing == "99_nothing: examples/99_nothing/gpu.toml is missing"
    assert last == "failed or missing: 99_nothing"
