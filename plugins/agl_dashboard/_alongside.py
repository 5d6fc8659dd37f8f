"""``agl train --dashboard``: the dashboard in a process of its own, while the run continues."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

import click

from agl_core.cli.group import CliState

_log = logging.getLogger(__name__)

_END_S: Final = 5.0
"""Time for its process to end, before it is killed."""
_START_S: Final = 30.0
"""Time in which it answers after a short run."""
_LAST_LINES: Final = 3

_shown: ContextVar[DashboardProcess | None] = ContextVar("agl_dashboard_process", default=None)


def shown() -> DashboardProcess | None:
    """Return the dashboard of the current command; None if none was asked for."""
    return _shown.get()


class DashboardProcess:
    """Starts `agl dashboard` with the first run of a command, says its address, and ends it.

    Whatever fails here is a warning: the run continues.
    """

    def __init__(self, files: Sequence[str] = ()) -> None:
        """Prepare it without starting a process.

        Args:
            files: Plugin files that the dashboard loads as well.
        """
        self._files = files
        self._folder = Path()
        self._name = ""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ending = False
        self._answered = threading.Event()
        """Set once it answers, or has ended without."""
        self.finished = False
        """Whether a run has ended well."""
        self.url = ""
        """Address of the run's first page; empty until the dashboard answers."""

    def note(self, config: Any) -> None:
        """Note which run is about to begin."""
        self._folder, self._name = Path(config.directory), config.name

    def start(self) -> None:
        """Start the process; later calls do nothing."""
        if self._process is not None:
            return
        plugins = [argument for file in self._files for argument in ("--plugin", file)]
        command = [sys.executable, "-m", "agl_core.cli", *plugins, "dashboard", str(self._folder)]
        try:
            self._process = subprocess.Popen(  # noqa: S603  the program itself
                [*command, "--attached"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl+C on the console is for the run
            )
        except OSError as error:
            _log.warning("The dashboard was not started: %s", error)
            return
        output = self._process.stdout
        assert output is not None
        self._reader = threading.Thread(
            target=self._read, args=(output,), name="agl-dashboard-output", daemon=True
        )
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        last: deque[str] = deque(maxlen=_LAST_LINES)
        with output:
            for line in output:
                text = line.strip()
                if not self.url and text.startswith("http"):
                    self.url = f"{text}/run/{quote(self._name, safe='/')}/-/overview"
                    self._answered.set()
                    text = f"Dashboard: {self.url}"
                last.append(text)
                if self.url or text.startswith("Port "):
                    with suppress(OSError, ValueError):  # the stream is closed
                        click.echo(text, err=True)
        self._answered.set()
        if not self._ending:
            said = " ".join(last) or "it said nothing"
            _log.warning("The dashboard has ended, the run continues: %s", said)

    def wait(self) -> None:
        """Wait until the dashboard ends, or for Ctrl+C; return if it does not answer."""
        process = self._process
        if process is None or not self._answered.wait(_START_S) or not self.url:
            return
        click.echo(
            f"The run has ended. The dashboard stays at {self.url} (Ctrl+C ends it)", err=True
        )
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process.wait()
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGINT, before)

    def end(self) -> None:
        """End the process; idempotent."""
        process, self._ending = self._process, True
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()  # it ends with its input
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(_END_S)


@contextmanager
def alongside(files: Sequence[str], *, stays: bool) -> Generator[DashboardProcess, None, None]:
    """Show the runs that begin inside.

    Args:
        files: Plugin files that the dashboard loads as well.
        stays: Whether it stays after a run that ended well, until Ctrl+C.
    """
    dashboard = DashboardProcess(files)
    token = _shown.set(dashboard)
    try:
        yield dashboard
        if stays and dashboard.finished:
            dashboard.wait()
    finally:
        _shown.reset(token)
        dashboard.end()


def _asked(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        files = ctx.ensure_object(CliState).files
        ctx.with_resource(alongside(files, stays=_is_interactive()))


def _is_interactive() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def make_option() -> click.Option:
    """Return the option ``--dashboard``."""
    return click.Option(
        ["--dashboard"],
        is_flag=True,
        expose_value=False,
        callback=_asked,
        help="Show the run in a browser while it runs; at a terminal until Ctrl+C.",
    )
