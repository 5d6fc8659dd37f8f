"""Renew the locked environments: rewrite `constraints/locked/<environment>.txt`.

Run it as ``tox -e lock``, or ``tox -e lock -- lint core`` for some environments. It reads the
requirements of each environment from tox.ini, resolves them with the newest releases for Linux and
Python 3.11, and writes the versions without hashes or addresses. The files are constraints: on
another system or Python, packages that they do not name are not limited.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LOCKED: Final = ROOT / "constraints" / "locked"
PYTHON: Final = "3.11"
TOOLS: Final = {
    "tox": ["tox>=4.25", "tox-uv>=1.29"],
    "build": ["hatchling>=1.27", "hatch-fancy-pypi-readme>=24.1"],
}
"""Requirements to create an environment: tox itself, and the build backend of the package."""


def environments() -> dict[str, dict[str, Any]]:
    """Return the requirements of each locked environment of tox.ini, by its name."""
    keys = ("deps", "extras", "dependency_groups", "set_env")
    command = [sys.executable, "-m", "tox", "config", "--format", "json", "-e", "ALL", "-k", *keys]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    every = json.loads(done.stdout)["env"]
    return {
        name: each
        for name, each in every.items()
        if "UV_CONSTRAINT" in str(each["set_env"]) and not name.startswith(".")
    }


def resolve(name: str, needs: list[str], options: list[str]) -> None:
    """Write the newest versions that `needs` allow; without options, only of `needs`.

    Raises:
        CalledProcessError: no versions are compatible; uv prints which.
    """
    command = ["uv", "pip", "compile", "--quiet", "--upgrade", "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--python-platform", "linux"]
    command += ["--python-version", PYTHON, *options, "-"]
    wanted = "\n".join(needs)
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, input=wanted
    )
    # The version of a CPU build (+cpu) is not on any index.
    pinned = re.sub(r"\+cpu\b", "", done.stdout)
    LOCKED.joinpath(f"{name}.txt").write_text(pinned, encoding="utf-8")


def main(names: list[str]) -> None:
    """Lock the named environments; all if there are no names."""
    known = environments()
    wrong = sorted(set(names) - {*known, *TOOLS})
    if wrong:
        sys.exit(f"No locked environment {wrong[0]!r}: there are {', '.join([*TOOLS, *known])}")
    for name, needs in TOOLS.items():
        if not names or name in names:
            resolve(name, needs, [])
    for name, asked in known.items():
        if names and name not in names:
            continue
        deps: list[str] = asked["deps"]
        options = [word for line in deps if line.startswith("-c ") for word in line.split(" ", 1)]
        options += [word for each in asked["dependency_groups"] for word in ("--group", each)]
        options += [word for each in asked["extras"] for word in ("--extra", each)]
        needs = [line for line in deps if not line.startswith("-c ")]
        resolve(name, needs, ["pyproject.toml", *options])


if __name__ == "__main__":
    main(sys.argv[1:])
