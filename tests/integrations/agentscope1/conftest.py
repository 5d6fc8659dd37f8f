"""A bench with AgentScope 1 attached, and what every test of it needs."""

import pytest
from agl_agentscope._integration import AgentScopeIntegration

from agl_core.testing.bench import Bench
from agl_core.testing.scenario import outline
from agl_core.tracing import attach


@pytest.fixture
async def bench():
    async with Bench.open() as bench:
        attachment = attach(integrations=[AgentScopeIntegration()])
        yield bench
        attachment.detach()


@pytest.fixture
async def unattached():
    """A bench whose requests are marked, without the framework's integration."""
    async with Bench.open() as bench:
        attachment = attach(integrations=[])
        yield bench
        attachment.detach()


@pytest.fixture
def tree():
    """Spans as indented lines of kind, name and agent."""
    return lambda spans, *kinds: outline(spans, kinds)
