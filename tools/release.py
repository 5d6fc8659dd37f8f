"""Build the files of a release, and test them as a user who installs them.

Run it as ``tox -e release``. Sdist and wheel are written to ``dist/``; ``twine upload dist/*``
publishes them. The script builds the wheel from the sdist, checks the metadata of both, installs
the wheel into an empty environment and runs the demo in it, outside the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
CONSTRAINTS: Final = ("cpu.txt", "locked/e2e.txt")
STEPS: Final = "train.steps=2"
"""Short run: the end-to-end tests run the whole demo; this only checks the installed wheel."""


def build() -> Path:
    """Build both files into an empty `DIST` and return the wheel.

    Raises:
        CalledProcessError: a build fails, or an index would refuse or misread the metadata.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", str(DIST), str(ROOT))
    files = sorted(map(str, DIST.iterdir()))
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def relative_links(wheel: Path) -> list[str]:
    """Return links of the description that do not work on an index."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return re.findall(r"\]\((?!https?:|#)[^)]*\)", text)


def try_it(wheel: Path, folder: Path) -> None:
    """Install `wheel` into an empty environment in `folder` and run the demo from it.

    Raises:
        CalledProcessError: a command of a user would fail.
    """
    venv = folder / "venv"
    run("uv", "venv", "--quiet", "--python", sys.executable, str(venv))
    programs = venv / ("Scripts" if os.name == "nt" else "bin")
    limits = [word for name in CONSTRAINTS for word in ("-c", str(ROOT / "constraints" / name))]
    install = ["uv", "pip", "install", "--quiet", "--python", str(programs / "python"), *limits]
    run(*install, f"agl-core[demo] @ {wheel.as_uri()}")
    agl = str(programs / "agl")
    run(agl, "--version", folder=folder)
    run(agl, "plugins", folder=folder)
    run(agl, "demo", "--set", STEPS, folder=folder)


def run(*command: str, folder: Path = ROOT) -> None:
    """Run a program in `folder` until it ends; its output is shown."""
    # The constraints of this environment do not apply to the installed wheel.
    env = {name: value for name, value in os.environ.items() if name != "UV_CONSTRAINT"}
    subprocess.run(command, cwd=folder, check=True, env=env)


def main() -> None:
    """Run all steps; any failure ends the program."""
    wheel = build()
    links = relative_links(wheel)
    if links:
        sys.exit(f"The description has {len(links)} relative links, the first {links[0]}")
    with tempfile.TemporaryDirectory() as folder:
        try_it(wheel, Path(folder))


if __name__ == "__main__":
    main()
