"""A run whose stored text is masked shows no personal data on any page."""

from __future__ import annotations

import re
from html import unescape

import pytest

from agl_core.types import RolloutQuery
from tests.core.app.conftest import Bench
from tests.plugins.dashboard.test_pages import counted
from tests.plugins.privacy.planted import NAMES, found_in
from tests.plugins.privacy.test_runs import rates, says_all

LINK = re.compile(r'(?:href|hx-get|src|data-src|data-url)="(/run/bench[^"#]*)')
MOST_PAGES = 600


@pytest.mark.timeout(600)
@pytest.mark.parametrize("masked", [True, False])
async def test_no_page_has_one_of_200_items(visit, tmp_path, masked):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(NAMES))
    bench = Bench(tmp_path / "runs")
    bench.sections = {
        "privacy": {"names_file": str(names), "store": masked, "reinforcement": "off"},
        "store": {"name": "sqlite"},
        "algorithm": {"name": "reinforce", "lr": 1.0, "group_size": 1},
        "train": {"steps": 2, "tasks_per_step": 25},
    }
    inputs = {"agent": says_all, "reward": rates, "tasks": [{"input": n} for n in range(50)]}
    await bench.app(inputs).train()
    client = await visit(tmp_path / "runs")
    await counted(client, "bench")

    rollouts = await client.sources.get("bench").store.rollouts(RolloutQuery(limit=100))
    left = ["/run/bench/-/overview", *(f"/run/bench/-/trace/{each.id}" for each in rollouts)]
    pages, found = set(), set()
    while left and len(pages) < MOST_PAGES:
        address = left.pop()
        if address in pages or "/changes" in address or "/stream" in address:
            continue
        pages.add(address)
        answer = await client.get(address)
        text = unescape(answer.text)
        found.update(found_in(text))
        links = [unescape(each) for each in LINK.findall(answer.text)]
        left = [*(each for each in links if "?" in each), *left] + [
            each for each in links if "?" not in each
        ]

    assert {each.id for each in rollouts} <= {each.rpartition("/")[2] for each in pages}
    if masked:
        assert found == set()
    else:
        assert len(found) > 150
