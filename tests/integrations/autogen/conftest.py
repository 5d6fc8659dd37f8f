"""A bench with AutoGen attached, and clients that say by their model who speaks."""

import pytest
from agl_autogen._integration import AutoGenIntegration
from agl_testing.bench import Bench
from agl_testing.scenario import SYSTEM, outline
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import DefaultAsyncHttpxClient

KNOWS = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[AutoGenIntegration()]) as bench:
        yield bench


@pytest.fixture
async def client():
    """Makes clients of models over connections that are closed with the test."""
    opened = []

    def make(job, name, *, kind=OpenAIChatCompletionClient, knows=(), **fields):
        http_client = DefaultAsyncHttpxClient(verify=False)
        opened.append(http_client)
        return kind(
            model=job.model(name),
            base_url=job.base_url,
            api_key=job.api_key,
            model_info={**KNOWS, **dict(knows)},
            http_client=http_client,
            **fields,
        )

    yield make
    for http_client in opened:
        await http_client.aclose()


@pytest.fixture
def agent(client):
    """Makes an agent whose model is called after it."""

    def make(job, name, *, model=None, family="unknown", vision=False, **fields):
        fields.setdefault("system_message", SYSTEM)
        knows = {"family": family, "vision": vision}
        return AssistantAgent(name, model or client(job, name, knows=knows), **fields)

    return make


@pytest.fixture
def tree():
    """Spans as nested lines of kind and name, with the agent where it differs from the name."""
    return _tree


def _tree(spans):
    return outline(spans, show=lambda span: f"{span.kind.value} {span.name}")
