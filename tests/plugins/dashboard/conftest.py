import asyncio

import httpx
import pytest
from agl_dashboard._app import Dashboard
from agl_dashboard._sources import ShownRuns, Writing

from agl_core._builtin import load_plugins
from tests.plugins.dashboard.world import finished_run


@pytest.fixture(scope="session")
def plugins():
    return load_plugins()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with one finished run, which no test changes."""
    folder = tmp_path_factory.mktemp("runs")
    asyncio.run(finished_run(folder / "alpha"))
    return folder


@pytest.fixture
async def visit(plugins, tmp_path):
    """Open the dashboard of a target in this process; returns a client of it."""
    opened = []

    async def visited(target, key="", *, write=False, marks=None):
        writing = Writing(write=write, file=marks)
        sources = ShownRuns(str(target), plugins, tmp_path / "index", writing=writing)
        app = Dashboard(sources, plugins).app(key=key)
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost", verify=False
        )
        client.sources = sources
        opened.append(client)
        return client

    yield visited
    for client in opened:
        await client.aclose()
        await client.sources.close()
