"""The scenario's agents in AgentScope 2, and models whose connections are closed with their job."""

import asyncio
from contextlib import asynccontextmanager

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import ToolResultState, UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit, ToolResponse
from agl_testing.scenario import JUDGE, PLANNER, SYSTEM, TOOL_RESULT, WRITER, ScenarioProgram
from openai import DefaultAsyncHttpxClient
from pydantic import BaseModel

ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="ok")


class Price(BaseModel):
    item: str


async def lookup(item: str) -> str:
    """Look up what an item costs.

    Args:
        item (str): the item
    """
    return TOOL_RESULT


@asynccontextmanager
async def models(job, **fields):
    """Makes the model that an agent asks, over connections of its own loop and job."""
    connections = DefaultAsyncHttpxClient(verify=False)

    def model(name, **more):
        return OpenAIChatModel(
            credential=OpenAICredential(api_key=job.api_key, base_url=job.base_url),
            model=job.model(name),
            client_kwargs={"http_client": connections, "max_retries": 0},
            **{"stream": False, "retry_delay": 0.0, **fields, **more},
        )

    try:
        yield model
    finally:
        await connections.aclose()


def agent(model, name, *tools, **fields):
    fields.setdefault("injection_config", InjectionConfig(inject_runtime_state=False))
    functions = [
        tool if isinstance(tool, FunctionTool) else FunctionTool(tool, permission=ALLOWED)
        for tool in tools
    ]
    if functions:
        fields["toolkit"] = Toolkit(tools=functions)
    return Agent(name=name, system_prompt=SYSTEM, model=model(name), **fields)


def user(text):
    return UserMsg(name="user", content=text)


async def reply(speaker, text):
    return (await speaker.reply(user(text))).get_text_content()


class FailClosed(MiddlewareBase):
    """Lets a tool's exception end the reply: the framework tells the model of it and goes on."""

    def __init__(self, error):
        self._error = error

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for chunk in next_handler(**input_kwargs):
            if isinstance(chunk, ToolResponse) and chunk.state == ToolResultState.ERROR:
                raise self._error
            yield chunk


class AgentScopeProgram(ScenarioProgram):
    """Two named agents, one after the other."""

    def run(self, job):
        return asyncio.run(self.arun(job))

    async def arun(self, job):
        async with models(job) as model:
            plan = await reply(agent(model, PLANNER, lookup), job.question)
            return await reply(agent(model, WRITER), plan)

    def stream(self, job):
        return asyncio.run(self.astream(job))

    async def astream(self, job):
        async with models(job, stream=True) as model:
            plan = await streamed(agent(model, PLANNER, lookup), job.question)
            return await streamed(agent(model, WRITER), plan)

    def structured(self, job):
        return asyncio.run(self._structured(job))

    async def _structured(self, job):
        async with models(job) as model:
            answer = await agent(model, WRITER).reply(user(job.question), structured_schema=Price)
            return answer.structured_output

    async def parallel(self, job):
        async with models(job) as model:
            agents = [agent(model, PLANNER), agent(model, WRITER)]
            return await asyncio.gather(*(reply(each, job.question) for each in agents))

    def delegate(self, job):
        return asyncio.run(self._delegate(job))

    async def _delegate(self, job):
        async with models(job) as model:
            writer = agent(model, WRITER)

            async def ask_writer(item: str) -> str:
                """Ask the writer.

                Args:
                    item (str): the item
                """
                return await reply(writer, item)

            return await reply(agent(model, PLANNER, ask_writer), job.question)

    def judge(self, job):
        return asyncio.run(self._judge(job))

    async def _judge(self, job):
        async with models(job) as model:

            async def review(item: str) -> str:
                """Ask the model behind the judge.

                Args:
                    item (str): the item
                """
                answer = await model(JUDGE)([user(item)])
                return answer.content[0].text

            return await reply(agent(model, PLANNER, review), job.question)

    def fail(self, job, error):
        return asyncio.run(self._fail(job, error))

    async def _fail(self, job, error):
        async def lookup(item: str) -> str:
            """Look up what an item costs.

            Args:
                item (str): the item
            """
            raise error

        async with models(job) as model:
            # Tools that may run at the same time fail with an exception group.
            tool = FunctionTool(lookup, permission=ALLOWED, is_concurrency_safe=False)
            planner = agent(model, PLANNER, tool, middlewares=[FailClosed(error)])
            return await reply(planner, job.question)


async def streamed(speaker, text):
    """Read an agent's stream to its end and give its text."""
    final = None
    async for event in speaker.reply_stream(user(text), yield_final_msg=True):
        final = event
    return final.get_text_content()
