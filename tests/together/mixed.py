"""One agent with at most one tool, in each framework that can live beside the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agent_framework import Agent as FrameworkAgent
from agent_framework.openai import OpenAIChatCompletionClient as FrameworkClient
from agents import Agent as SDKAgent
from agents import OpenAIChatCompletionsModel, Runner, function_tool
from agentscope.agent import Agent as ScopeAgent
from agentscope.agent import InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from agl_testing.scenario import SYSTEM, Job
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

Tool = Callable[[str], Awaitable[str]]
Ask = Callable[[Job, str, DefaultAsyncHttpxClient, "Tool | None"], Awaitable[Any]]
_ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="ok")
_KNOWN = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


def _client(job: Job, connections: DefaultAsyncHttpxClient) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=job.base_url, api_key=job.api_key, http_client=connections)


def _tools(tool: Tool | None, make: Callable[[Any], Any] = lambda function: function) -> list[Any]:
    if tool is None:
        return []

    async def lookup(item: str) -> str:
        """Look up what an item costs.

        Args:
            item (str): the item
        """
        return await tool(item)

    return [make(lookup)]


async def langchain(
    job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None
) -> Any:
    model = ChatOpenAI(
        model=job.model(name),
        base_url=job.base_url,
        api_key=job.api_key,
        http_async_client=connections,
    )
    agent = create_agent(model, _tools(tool), system_prompt=SYSTEM, name=name)
    return (await agent.ainvoke({"messages": [("user", job.question)]}))["messages"][-1].content


async def openai_agents(
    job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None
) -> Any:
    model = OpenAIChatCompletionsModel(job.model(name), _client(job, connections))
    tools = _tools(tool, function_tool)
    agent = SDKAgent(name=name, instructions=SYSTEM, model=model, tools=tools)
    return (await Runner.run(agent, job.question)).final_output


async def autogen(
    job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None
) -> Any:
    model = OpenAIChatCompletionClient(
        model=job.model(name),
        base_url=job.base_url,
        api_key=job.api_key,
        model_info=_KNOWN,
        http_client=connections,
    )
    agent = AssistantAgent(
        name, model, tools=_tools(tool), system_message=SYSTEM, max_tool_iterations=2
    )
    return (await agent.run(task=job.question)).messages[-1].content


async def agent_framework(
    job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None
) -> Any:
    client = FrameworkClient(model=job.model(name), async_client=_client(job, connections))
    agent = FrameworkAgent(client, SYSTEM, name=name, tools=_tools(tool))
    return (await agent.run(job.question)).text


async def agentscope(
    job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None
) -> Any:
    model = OpenAIChatModel(
        credential=OpenAICredential(api_key=job.api_key, base_url=job.base_url),
        model=job.model(name),
        client_kwargs={"http_client": connections},
        stream=False,
    )
    tools = _tools(tool, lambda function: FunctionTool(function, permission=_ALLOWED))
    agent = ScopeAgent(
        name,
        SYSTEM,
        model,
        Toolkit(tools=tools),
        injection_config=InjectionConfig(inject_runtime_state=False),
    )
    reply = await agent.reply(UserMsg(name="user", content=job.question))
    return reply.get_text_content()


FRAMEWORKS: dict[str, Ask] = {
    "agent_framework": agent_framework,
    "agentscope": agentscope,
    "autogen": autogen,
    "langchain": langchain,
    "openai_agents": openai_agents,
}
