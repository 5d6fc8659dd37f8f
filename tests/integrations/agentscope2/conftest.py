"""A bench with AgentScope 2 attached, and what every test of it needs."""

import pytest
from agl_agentscope._integration import AgentScopeIntegration

from agl_core.testing.bench import Bench
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
    return _tree


def _tree(spans, *kinds):
    shown = [span for span in spans if not kinds or span.kind.value in kinds]
    parents = {span.id: span.parent_id for span in spans}
    ids = {span.id for span in shown}

    def depth(span):
        at, found = span.parent_id, 0
        while at is not None:
            found += at in ids
            at = parents.get(at)
        return found

    return [f"{'. ' * depth(span)}{span.kind.value} {_name(span)}" for span in shown]


def _name(span):
    return span.agent if span.kind.value in ("agent", "llm") else span.name
