"""A bench with the OpenAI Agents SDK attached, and agents that say by their model who speaks."""

import pytest
from agents import Agent, OpenAIChatCompletionsModel
from agl_http_clients._integration import HttpClients
from agl_openai_agents._integration import OpenAIAgentsIntegration
from agl_testing.bench import Bench
from agl_testing.scenario import SYSTEM, outline
from openai import AsyncOpenAI


def pytest_collection_modifyitems(items):
    # `Runner.run_sync` shuts the generators of its thread's loop down each time, and uses it again.
    again = "ignore:asynchronous generator .* was scheduled after:ResourceWarning"
    for item in items:
        if "openai_agents" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings(again))


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[HttpClients(), OpenAIAgentsIntegration()]) as bench:
        yield bench


@pytest.fixture
async def agent():
    """Makes an agent over a client of its own, which is closed with the test."""
    clients = []

    def make(job, name, *, model=OpenAIChatCompletionsModel, called="", **fields):
        client = AsyncOpenAI(base_url=job.base_url, api_key=job.api_key)
        clients.append(client)
        asked = model(model=job.model(called or name), openai_client=client)
        return Agent(name=name, instructions=SYSTEM, model=asked, **fields)

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def tree():
    """Spans as nested lines of kind, name and agent."""
    return _tree


def _tree(spans, *kinds):
    return outline(spans, kinds, show=_shown)


def _shown(span):
    return f"{span.kind.value} {span.name} {span.agent or '-'}"
