"""The tutorial, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import INSTALLED

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INSTALL = ("git clone", "python3 -m venv", "pip install")
SERVED = "http://127.0.0.1:8000/v1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def blocks() -> list[tuple[str, str]]:
    """Language and text of the page's code, without what installs."""
    found = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return [(kind, text) for kind, text in found if not text.startswith(INSTALL)]


class Shell:
    """One folder and the variables that were exported there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unset = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "AGL_DISABLE_PLUGINS")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
        self.environment = {**kept, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, line: str) -> str:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.environment[name] = value
            return ""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def serve(self, line: str) -> tuple[subprocess.Popen[str], str]:
        """Start a server at a port of its own; gives its address."""
        process = subprocess.Popen(
            ["sh", "-c", f"exec {line} --port 0"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        assert process.stdout is not None
        address = re.search(r"http://\S+/v1", process.stdout.readline())
        assert address is not None
        return process, address[0]


@pytest.mark.skipif("demo" not in INSTALLED.split(","), reason="agl-core is not installed")
def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    """G3, agl init: a client made at import is trained through, from a clone to a served model."""
    shell = Shell(tmp_path)
    printed: dict[str, str] = {}
    server, url = None, SERVED
    try:
        for kind, text in blocks():
            if kind == "python":
                (tmp_path / "shop.py").write_text(text, encoding="utf-8")
            elif kind == "json":
                (tmp_path / "tasks.jsonl").write_text(text, encoding="utf-8")
            elif text.startswith("agl serve "):
                server, url = shell.serve(text.strip())
            else:
                for line in text.splitlines():
                    name = " ".join(line.split()[:2])
                    printed[name] = shell.run(line.replace(SERVED, url))
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
    assert url != SERVED
    assert "agl doctor run.toml" in printed["agl init"]
    assert re.search(
        r"planner: \d+ calls, trained.*writer: \d+ calls, trained", printed["agl doctor"]
    )
    assert "step 4/4" in printed["agl train"]
    assert "sent_elsewhere" not in printed["agl train"]
    assert printed["agl watch"].endswith("run finished\n")
    assert "8 of" in printed["agl store"]
    for said in ("system: You are the writer.", "user: Question:", "answer: "):
        assert said in printed["agl trace"]
    assert "eval at step 4" in printed["agl eval"]
    asked = next(text for line, text in printed.items() if line.startswith("OPENAI_BASE_URL"))
    assert asked.strip()
