"""The server that the tests use: a real MongoDB, or a process that stands in for it."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = [
    *("attrs==26.1.0", "cxp==5.0.0", "dnspython==2.9.2", "jsonschema==4.26.0"),
    *("jsonschema-specifications==2025.9.1", "mongoeco==4.11.0", "msgspec==0.23.0"),
    *("numkong==7.8.6", "numpy==2.5.5", "pymongo==4.20.1", "pyuca==1.2", "referencing==0.37.0"),
    *("rfc8785==0.1.4", "rpds-py==2026.9.1", "shapely==2.2.0", "tqdm==4.70.1"),
    "usearch==2.26.6",
]
"""mongoeco and what it needs, which need Python 3.13."""
COMMAND = "uv venv --python 3.13 DIR && uv pip install --python DIR 'mongoeco[wire]==4.11.0'"
MISSING = (
    f"no MongoDB server: set AGL_TEST_MONGODB_URL to the address of one, or AGL_TEST_MONGOECO to "
    f"DIR/bin/python after: {COMMAND}"
)
PATIENCE_S = 60


def _pythons():
    """Yield what uv may find Python 3.13 by: those of pyenv have no name on the path."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(each) for each in sorted(root.glob("versions/3.13*/bin/python")))
    yield "3.13"


def stand_in():
    """Return a Python with mongoeco, made once per environment; None if there is no Python 3.13."""
    if named := os.environ.get("AGL_TEST_MONGOECO"):
        return Path(named)
    folder = Path(sys.prefix) / "mongoeco-4.11.0"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = folder / "ready"
        if not ready.exists() and not _make(folder):
            return None
        ready.touch()
    return folder / "bin" / "python"


def _make(folder):
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        return False
    for python in _pythons():
        make = [uv, "venv", "--quiet", "--clear", "--python", python, folder]
        fill = [uv, "pip", "install", "--quiet", "--no-deps", "--python", folder, *PACKAGES]
        if not any(_run(command) for command in (make, fill)):
            return True
    return False


def _run(command):
    # The versions of this environment do not limit those of the other one.
    environment = {name: each for name, each in os.environ.items() if name != "UV_CONSTRAINT"}
    return subprocess.run(command, check=False, env=environment).returncode


class StandIn:
    """A process of mongoeco."""

    def __init__(self, python, *words):
        self.python = python
        self.words = words
        self.process = None
        self.folder = Path(tempfile.mkdtemp(prefix="agl-mongodb-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self):
        script = Path(__file__).with_name("stand_in.py")
        command = [self.python, "-P", script, str(self.port), *self.words]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError((self.folder / "log").read_text()[-2000:])

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database, user=""):
        return f"mongodb://{user}127.0.0.1:{self.port}/{database}?directConnection=true"
