"""Runs an example for a few steps as a user does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def train(folder: Path, directory: Path, *settings: str) -> dict[str, Any]:
    """Train an example on its tasks alone, without evaluation; return its report."""
    done = started(folder, directory, "tasks.val=null", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((directory / "figures.json").read_text(encoding="utf-8"))


def started(folder: Path, directory: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agl_core.cli", "train", str(folder / "run.toml")]
    command += ["--json", str(directory / "figures.json")]
    for setting in (f"directory={directory / 'runs'}", *settings):
        command += ["--set", setting]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, timeout=800
    )


def imported(file: Path) -> set[str]:
    """Return the packages that a file imports."""
    nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}
