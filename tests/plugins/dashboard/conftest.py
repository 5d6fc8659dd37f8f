import asyncio

import httpx
import pytest
from agl_dashboard._app import Dashboard
from agl_dashboard._sources import ShownRuns, Writing

from agl_core._builtin import load_plugins
from tests.plugins.dashboard.browser import Served, Watched, chromium
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


@pytest.fixture(scope="module")
def browser():
    """Chromium for one module: its loop would be in the way of tests that are coroutines."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def serve(tmp_path):
    served = []

    def start(target, *arguments):
        served.append(Served(target, tmp_path / "index", *arguments))
        return served[-1].url

    yield start
    for each in served:
        each.stop()


@pytest.fixture
def tab(browser):
    contexts, tabs = [], []

    def opened(base, **options):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 800}, **options))
        tabs.append(Watched(contexts[-1], base))
        return tabs[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [fault for each in tabs for fault in each.faults] == []
