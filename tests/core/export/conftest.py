from __future__ import annotations

import pytest
from click.testing import CliRunner

from agl_core.cli.group import cli
from tests.core.export.recorded import Run
from tests.installed import INSTALLED


@pytest.fixture
async def run(tmp_path):
    run = Run(tmp_path / "agl_runs" / "run")
    await run.open()
    yield run
    await run.store.close()


@pytest.fixture
def agl_command(monkeypatch, tmp_path):
    """Run ``agl`` in a folder of its own, without the installed plugins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", INSTALLED)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli, [str(argument) for argument in arguments])
