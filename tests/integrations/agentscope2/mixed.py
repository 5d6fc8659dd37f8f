"""One agent with at most one tool, which `tests/together` runs beside other frameworks."""

from __future__ import annotations

from typing import Any

from agentscope.agent import Agent as ScopeAgent
from agentscope.agent import InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from agl_testing.scenario import SYSTEM, Job
from openai import DefaultAsyncHttpxClient

from tests.together.mixed import Tool, tools_of

_ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="ok")


async def ask(job: Job, name: str, connections: DefaultAsyncHttpxClient, tool: Tool | None) -> Any:
    model = OpenAIChatModel(
        credential=OpenAICredential(api_key=job.api_key, base_url=job.base_url),
        model=job.model(name),
        client_kwargs={"http_client": connections},
        stream=False,
    )
    tools = tools_of(tool, lambda function: FunctionTool(function, permission=_ALLOWED))
    agent = ScopeAgent(
        name,
        SYSTEM,
        model,
        Toolkit(tools=tools),
        injection_config=InjectionConfig(inject_runtime_state=False),
    )
    reply = await agent.reply(UserMsg(name="user", content=job.question))
    return reply.get_text_content()
