from __future__ import annotations

import asyncio

import pytest

from agl_core.types import PromptTemplate
from tests.trainers.prompts.fakes import TEXT
from tests.trainers.prompts.runs import KIND, LONGER, WrittenRun

CONFIG = {
    "name": "shop",
    "model": "fake-model",
    "engine": {"name": "http", "base_url": "http://127.0.0.1:9/v1"},
    "prompts": {"writer": {"agents": ["writer"], "captured": True}},
}


def captured(text, *, known=TEXT, agents=("writer",), tool=""):
    return PromptTemplate(template=text, known=known, agents=agents, tool=tool)


@pytest.fixture
def run(tmp_path):
    """A run that tuned the captured prompt of its writer, with an endpoint that cannot be reached."""
    run = WrittenRun(tmp_path / "agl_runs" / "shop", **CONFIG)
    asyncio.run(run.phase([(LONGER, TEXT), (KIND, LONGER)]))
    return run
