"""One agent with at most one tool, which `tests/together` runs beside other frameworks."""

from __future__ import annotations

from typing import Any

from agl_testing.scenario import SYSTEM, Job
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient

from tests.together.mixed import Tool, tools_of


async def ask(job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None) -> Any:
    model = ChatOpenAI(
        model=job.model(name),
        base_url=job.base_url,
        api_key=job.api_key,
        http_async_client=connections,
    )
    agent = create_agent(model, tools_of(tool), system_prompt=SYSTEM, name=name)
    return (await agent.ainvoke({"messages": [("user", job.question)]}))["messages"][-1].content
