"""Servers that the distribution has: installed where tests run as root, else skipped with the command."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def server(binary: str, package: str) -> str:
    """Return the path of a server's program, installing its package as root where it is missing.

    Without root the test skips, and fails where ``CI`` is set.
    """
    if (found := _found(binary, package)) is None:
        _install(package)
        found = _found(binary, package)
    if found is None:
        text = f"there is no {binary}: apt-get install --no-install-recommends {package}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(text)
    assert found is not None
    return found


def _found(binary: str, package: str) -> str | None:
    own = Path("/usr/lib", package.removesuffix("-server"))
    places = [own / "bin", *sorted(own.glob("*/bin"), reverse=True), Path("/usr/sbin")]
    path = os.pathsep.join([*map(str, places), os.environ.get("PATH", "")])
    return shutil.which(binary, path=path)


def _install(package: str) -> None:
    if shutil.which("apt-get") is None or os.geteuid():
        return
    # At run level 1 the package starts no server of its own.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    options = ["-o", "DPkg::Lock::Timeout=300", "--no-install-recommends"]
    for command in (["update"], ["install", "--yes", *options, package]):
        done = subprocess.run(
            ["apt-get", "--quiet", *command], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"apt-get {command[0]} failed: {done.stderr[-1_000:]}")
