"""The gateway that serves completions and embeddings, and OpenAI's own client of an attempt."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from agl_completions._embeddings import Embeddings
from agl_completions._request import read

from tests.core.gateway import conftest
from tests.core.gateway.conftest import make_world, world

__all__ = ["client", "make_world", "served", "world"]


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conftest.DIALECTS, "POST /completions", read)
    monkeypatch.setitem(conftest.ROUTES, "POST /embeddings", Embeddings)


@pytest.fixture
async def client(world: Any) -> Any:
    """A client of one attempt, in which it is the agent ``writer``; `attempt` is on it."""
    attempt = await world.attempt()
    headers = world.headers(attempt)
    key = headers.pop("Authorization").removeprefix("Bearer ")
    async with openai.AsyncOpenAI(
        base_url=world.gateway.url + "/v1", api_key=key, default_headers=headers, max_retries=0
    ) as made:
        made.attempt = attempt
        yield made
