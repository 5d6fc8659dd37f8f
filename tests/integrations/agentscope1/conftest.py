"""A bench with AgentScope 1 attached, and what every test of it needs."""

import pytest
from agl_agentscope._integration import AgentScopeIntegration
from agl_http_clients._integration import HttpClients
from agl_testing.bench import Bench
from agl_testing.scenario import outline


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[HttpClients(), AgentScopeIntegration()]) as bench:
        yield bench


@pytest.fixture
async def unattached():
    """A bench whose requests are marked, without the framework's integration."""
    async with Bench.open(integrations=[]) as bench:
        yield bench


@pytest.fixture
def tree():
    """Spans as indented lines of kind, name and agent."""
    return lambda spans, *kinds: outline(spans, kinds)
