"""A bench with LangChain attached, and models that say by their name who speaks."""

import pytest
from agl_langchain._integration import LangChainIntegration
from agl_testing.bench import Bench
from agl_testing.scenario import outline
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[LangChainIntegration()]) as bench:
        yield bench


@pytest.fixture
def chat():
    """Makes the chat model that an agent asks, over connections of its own loop and test."""
    opened = []

    def model(job, agent, **fields):
        client, async_client = (
            DefaultHttpxClient(verify=False),
            DefaultAsyncHttpxClient(verify=False),
        )
        opened.append(client)
        return ChatOpenAI(
            model=job.model(agent),
            base_url=job.base_url,
            api_key=job.api_key,
            http_client=client,
            http_async_client=async_client,
            **fields,
        )

    yield model
    for client in opened:
        client.close()


@pytest.fixture
def tree():
    """Spans as nested lines of kind, name and agent."""
    return _tree


def _tree(spans, *kinds):
    return outline(spans, kinds, show=lambda span: f"{span.kind.value} {span.name}")
