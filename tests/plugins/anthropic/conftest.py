"""The gateway that speaks the dialect, and Anthropic's own clients of an attempt."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from agl_anthropic._counting import MessageCounting
from agl_anthropic._request import read

from tests.core.gateway import conftest
from tests.core.gateway.conftest import make_world, world

__all__ = ["client", "make_world", "served", "world"]


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conftest.DIALECTS, "POST /messages", read)
    monkeypatch.setitem(conftest.ROUTES, "POST /messages/count_tokens", MessageCounting)


@pytest.fixture
async def client(world: Any) -> Any:
    """A client of one attempt, whose key it sends as Anthropic's key; `attempt` is on it."""
    attempt = await world.attempt()
    headers = world.headers(attempt)
    key = headers.pop("Authorization").removeprefix("Bearer ")
    async with anthropic.AsyncAnthropic(
        base_url=world.gateway.url, api_key=key, default_headers=headers, max_retries=0
    ) as made:
        made.attempt = attempt
        yield made
