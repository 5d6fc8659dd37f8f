"""What every test shares: draws of property tests, certificates, and who goes first."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.installed import INSTALLED

settings.register_profile("agl", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("agl")

# A shell's background job ignores SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every client of httpx would read the authorities of the whole machine, tens of milliseconds long.
# Loopback needs none: this one signed nothing.
if "AGL_TEST_SMOLLM2" not in os.environ:
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))


def pytest_addoption(parser):
    parser.addoption("--screenshots", metavar="DIR", help="write the dashboard's pictures there")
    parser.addoption("--screenshots-of", metavar="RUN", help="the run's directory that they show")


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: one that begins last is waited for alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter):
    """Print how many cases a property test ran, which it gives as the property ``cases``."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "cases":
                terminalreporter.write_line(f"{report.nodeid}: {value} cases")


@pytest.fixture
def agl(monkeypatch, tmp_path):
    """Run ``agl`` in a folder of its own, without the installed plugins."""
    from click.testing import CliRunner

    from agl_core.cli.group import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", INSTALLED)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli, [str(argument) for argument in arguments])
