"""``agl train --dashboard``, and the port that a dashboard takes."""

import logging
import os
import pty
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
from agl_dashboard._alongside import DashboardProcess, alongside, shown
from agl_dashboard._command import listening
from click.testing import CliRunner

from agl_core.cli.group import CliState, cli
from agl_core.errors import ConfigError
from tests.e2e.processes import environment, settings

INTERRUPTED = 130


class Trained:
    """``agl train --dashboard`` in a process of its own."""

    def __init__(self, tmp_path, steps, *, terminal=False):
        self.name = tmp_path.name
        config = settings(tmp_path, train={"steps": steps}, name=self.name)
        place = {**environment(disabled=""), "PYTHONPATH": os.pathsep.join(sys.path)}
        place["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        command = [sys.executable, "-m", "agl_core.cli", "train", str(config), "--dashboard"]
        read, write = pty.openpty() if terminal else os.pipe()
        given = write if terminal else subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=place, stdin=given, stdout=write, stderr=write)
        os.close(write)
        self.said = os.fdopen(read, errors="replace")

    def line(self, text):
        return next(line for line in self.said if text in line)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.wait()


@pytest.fixture
def train(tmp_path):
    runs = []

    def start(steps, **options):
        runs.append(Trained(tmp_path, steps, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()
        run.said.close()


def answers(url):
    """Whether the run is shown; another test's dashboard may have got the port since."""
    try:
        return httpx.get(url).status_code == 200
    except httpx.ConnectError:
        return False


def address(line):
    return "http" + line.partition("http")[2].split()[0]


def test_the_dashboard_answers_while_the_run_goes_on_and_ends_with_it(train):
    run = train(10_000)
    url = address(run.line("Dashboard: "))
    assert url.endswith(f"/run/{run.name}/-/overview")
    answer = httpx.get(url)
    assert answer.status_code == 200
    assert ">running<" in answer.text
    assert run.end() == INTERRUPTED
    assert not answers(url)


def test_at_a_terminal_it_stays_after_the_run_until_it_is_interrupted(train):
    run = train(2, terminal=True)
    url = address(run.line("The dashboard stays at "))
    assert ">finished<" in httpx.get(url).text
    assert run.end() == 0
    assert not answers(url)


def test_where_nobody_looks_it_ends_with_a_finished_run(train):
    run = train(2)
    assert run.process.wait() == 0
    assert "step 2/2" in run.said.read()


def test_a_killed_run_leaves_no_dashboard(train):
    run = train(10_000)
    url = address(run.line("Dashboard: "))
    run.process.kill()
    run.said.read()  # its end: the dashboard holds the stream as well
    assert not answers(url)


@pytest.mark.parametrize(
    ("executable", "said"), [("/bin/false", "said nothing"), ("/none", "was not started")]
)
def test_a_dashboard_that_fails_is_a_warning(monkeypatch, caplog, tmp_path, executable, said):
    monkeypatch.setattr(sys, "executable", executable)
    with caplog.at_level(logging.WARNING), alongside([], stays=True) as dashboard:
        assert shown() is dashboard
        dashboard.note(SimpleNamespace(directory=str(tmp_path), name="run"))
        dashboard.start()
        dashboard.wait()
        dashboard.finished = True
    assert said in caplog.text
    assert shown() is None


def test_why_it_failed_is_said(caplog, tmp_path):
    dashboard = DashboardProcess()
    dashboard.note(SimpleNamespace(directory=str(tmp_path / "none"), name="run"))
    with caplog.at_level(logging.WARNING):
        dashboard.start()
        dashboard.wait()
        dashboard.end()
    assert "the run continues: Error: There is no" in caplog.text


def test_only_a_command_that_asks_for_it_has_one():
    shown_help = CliRunner().invoke(cli, ["train", "--help"], obj=CliState()).output
    assert "--dashboard" in shown_help
    assert "--dashboard" not in CliRunner().invoke(cli, ["eval", "--help"], obj=CliState()).output


def test_a_port_that_is_taken_is_an_error_only_if_it_was_named(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("agl_dashboard._command._PORT", port)
        with pytest.raises(ConfigError, match="Choose another host or port"):
            listening("127.0.0.1", port)
        with listening("127.0.0.1", None) as listener:
            other = listener.getsockname()[1]
        assert other != port
        assert f"Port {port} is in use: port {other} is used" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is no address of this machine"):
        listening("no.such.host.invalid", None)
