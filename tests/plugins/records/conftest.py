from __future__ import annotations

import pytest

from tests.plugins.records.recorded import Run


@pytest.fixture
async def run(tmp_path):
    run = Run(tmp_path / "agl_runs" / "run")
    await run.open()
    yield run
    await run.store.close()
