"""Chromium for tests: the distribution's, which root installs where it is missing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMAND = "apt-get install -y --no-install-recommends chromium"
EXPECTED = re.compile(r"net::ERR|401 \(Unauthorized\)")
"""Faults of a server that is away, or that asks for a key."""
NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable():
    """Return the path of a browser; skip the test where there is none and it cannot be installed."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        return _installed()
    reason = f"no browser is installed; as root: {COMMAND}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _installed():
    """Install the browser; the other processes of the tests wait for it."""
    with (Path(tempfile.gettempdir()) / "agl-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which(NAMES[0]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in ("apt-get update", COMMAND):
                subprocess.run(command.split(), check=True, env=environment, stdout=sys.stderr)
    return shutil.which(NAMES[0])


@contextmanager
def chromium():
    """Yield a browser of its own process."""
    path = executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def run(coroutine):
    """Run a coroutine to its end: the browser's own loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class Watched:
    """A tab, with everything that went wrong in it."""

    def __init__(self, context, base):
        self.base = base
        self.faults = []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))

    def _said(self, message):
        if message.type in ("error", "warning") and not EXPECTED.search(message.text):
            self.faults.append(f"console: {message.text}")

    def _asked(self, request):
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"request to {request.url}")

    def open(self, path):
        answer = self.page.goto(self.base + path)
        assert answer.status == 200, path
        return self.page


class Served:
    """``agl dashboard`` in a process of its own."""

    def __init__(self, target, index, *arguments):
        command = [sys.executable, "-m", "agl_core.cli", "dashboard", str(target), "--port", "0"]
        command += ["--index", str(index), *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        line = self.process.stdout.readline()
        assert " at http" in line, line
        self.url = line.split(" at ")[1].split()[0]

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
