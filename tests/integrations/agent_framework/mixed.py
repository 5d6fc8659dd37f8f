"""One agent with at most one tool, which `tests/together` runs beside other frameworks."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent as FrameworkAgent
from agent_framework.openai import OpenAIChatCompletionClient as FrameworkClient
from agl_testing.scenario import SYSTEM, Job
from openai import DefaultAsyncHttpxClient

from tests.together.mixed import Tool, client, tools_of


async def ask(job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None) -> Any:
    model = FrameworkClient(model=job.model(name), async_client=client(job, connections))
    agent = FrameworkAgent(model, SYSTEM, name=name, tools=tools_of(tool))
    return (await agent.run(job.question)).text
