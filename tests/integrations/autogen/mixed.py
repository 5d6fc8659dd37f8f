"""One agent with at most one tool, which `tests/together` runs beside other frameworks."""

from __future__ import annotations

from typing import Any

from agl_testing.scenario import SYSTEM, Job
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import DefaultAsyncHttpxClient

from tests.together.mixed import Tool, tools_of

_KNOWN = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


async def ask(job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None) -> Any:
    model = OpenAIChatCompletionClient(
        model=job.model(name),
        base_url=job.base_url,
        api_key=job.api_key,
        model_info=_KNOWN,
        http_client=connections,
    )
    agent = AssistantAgent(
        name, model, tools=tools_of(tool), system_message=SYSTEM, max_tool_iterations=2
    )
    return (await agent.run(task=job.question)).messages[-1].content
