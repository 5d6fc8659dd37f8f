"""A bench with the framework attached, and what every test of it needs."""

import pytest
from agl_agent_framework._integration import AgentFrameworkIntegration
from agl_testing.bench import Bench
from agl_testing.scenario import outline


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[AgentFrameworkIntegration()]) as bench:
        yield bench


@pytest.fixture
async def unattached():
    """A bench whose requests are marked, without the framework's integration."""
    async with Bench.open(integrations=[]) as bench:
        yield bench


@pytest.fixture
def tree():
    """Spans as indented lines of kind, name and agent."""
    return _tree


def _tree(spans, *kinds):
    return outline(spans, kinds)
