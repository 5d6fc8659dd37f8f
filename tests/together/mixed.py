"""What the frameworks' agents in ``tests/integrations/*/mixed.py`` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agl_testing.scenario import Job
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

Tool = Callable[[str], Awaitable[str]]


def client(job: Job, connections: DefaultAsyncHttpxClient) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=job.base_url, api_key=job.api_key, http_client=connections)


def tools_of(
    tool: Tool | None, make: Callable[[Any], Any] = lambda function: function
) -> list[Any]:
    if tool is None:
        return []

    async def lookup(item: str) -> str:
        """Look up what an item costs.

        Args:
            item (str): the item
        """
        return await tool(item)

    return [make(lookup)]
