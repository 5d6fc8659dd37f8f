"""One agent with at most one tool, which `tests/together` runs beside other frameworks."""

from __future__ import annotations

from typing import Any

from agents import Agent as SDKAgent
from agents import OpenAIChatCompletionsModel, Runner, function_tool
from agl_testing.scenario import SYSTEM, Job
from openai import DefaultAsyncHttpxClient

from tests.together.mixed import Tool, client, tools_of


async def ask(job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None) -> Any:
    model = OpenAIChatCompletionsModel(job.model(name), client(job, connections))
    tools = tools_of(tool, function_tool)
    agent = SDKAgent(name=name, instructions=SYSTEM, model=model, tools=tools)
    return (await Runner.run(agent, job.question)).final_output
