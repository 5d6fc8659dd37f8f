"""The pictures of the dashboard in the documentation.

``pytest tests/plugins/dashboard/test_pictures.py --screenshots docs/images`` writes them; without the
option they are only tried. ``--screenshots-of DIR`` takes them of a run that is there.
"""

from __future__ import annotations

import asyncio
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.plugins.dashboard.browser import Served, Watched, chromium
from tests.plugins.dashboard.pictures import LOOK, PICTURES, WIDTH, example_run, packed

pytest.importorskip("playwright")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
MOST = 200_000


def test_the_pictures_of_the_documentation_are_taken(request, tmp_path):
    shown = request.config.getoption("--screenshots-of")
    run = Path(shown).resolve() if shown else tmp_path / "runs" / "shop"
    if not shown:
        with ThreadPoolExecutor(1) as thread:  # the browser's own loop runs in this thread
            thread.submit(asyncio.run, example_run(run)).result()
    folder = Path(request.config.getoption("--screenshots") or tmp_path)
    served = Served(run.parent, tmp_path / "index")
    try:
        with chromium() as browser:
            for picture in PICTURES:
                size = {"width": WIDTH, "height": picture.height}
                context = browser.new_context(viewport=size, **LOOK)
                watched = Watched(context, served.url)
                page = watched.open(f"/run/{run.name}/-/{picture.page}")
                page.wait_for_selector(picture.ready)
                picture.then(page)
                png = packed(page.screenshot(animations="disabled"))
                context.close()
                assert not watched.faults, picture.name
                assert struct.unpack_from(">II", png, 16) == (WIDTH, picture.height)
                assert len(png) < MOST, picture.name
                (folder / f"{picture.name}.png").write_bytes(png)
    finally:
        served.stop()


def test_pages_show_pictures_that_are_taken():
    taken = {f"{picture.name}.png" for picture in PICTURES}
    there = {file.name for file in (ROOT / "docs" / "images").glob("dashboard-*.png")}
    pages = "".join(file.read_text() for file in (ROOT / "docs").glob("*.md"))

    assert there == taken
    assert all(f"images/{name}" in pages for name in taken)
