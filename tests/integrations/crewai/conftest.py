"""CrewAI, imported without its telemetry and its own warnings, and a bench with it attached."""

import asyncio
import functools
import os
import ssl
import warnings
from concurrent.futures import ThreadPoolExecutor

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_TESTING"] = "true"

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from agl_crewai._integration import CrewAIIntegration
    from crewai.llms.providers.openai.completion import OpenAICompletion

from agl_testing.bench import Bench
from agl_testing.scenario import outline

THREADS = 64
_CREATE = ssl.create_default_context


def pytest_collection_modifyitems(items):
    """CrewAI reads its own deprecated fields, closes no client, and warns of what it cannot save."""
    for item in items:
        if item.path.parent.name == "crewai":
            for ignored in (
                "ignore::DeprecationWarning:crewai",
                "ignore:unclosed:ResourceWarning",
                "ignore:function callbacks:UserWarning",
            ):
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(autouse=True)
def clients(monkeypatch):
    """CrewAI closes no client: those that ask synchronously are closed with their test."""
    made = []
    build = OpenAICompletion._build_sync_client

    def kept(model):
        made.append(build(model))
        return made[-1]

    monkeypatch.setattr(OpenAICompletion, "_build_sync_client", kept)
    yield
    for client in made:
        client.close()


@pytest.fixture(autouse=True)
async def threads():
    """CrewAI asks models in threads of the loop's own pool; fifty rollouts need as many."""
    with ThreadPoolExecutor(THREADS) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        yield


@pytest.fixture(autouse=True)
def certificates(monkeypatch):
    """Read once: every model of CrewAI makes two clients, and nothing here speaks TLS."""
    monkeypatch.setattr(ssl, "create_default_context", _default_context)


@functools.cache
def _default_context(**options):
    return _CREATE(**options)


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[CrewAIIntegration()]) as bench:
        yield bench


@pytest.fixture
def tree():
    """Spans as nested lines of kind, name and agent."""
    return _tree


def _tree(spans):
    shown = [span for span in spans if span.kind.value != "reward"]
    return outline(shown, show=lambda span: f"{span.kind.value} {span.name} {span.agent or '-'}")
