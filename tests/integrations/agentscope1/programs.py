"""The scenario's agents in AgentScope 1, and models whose connections are closed with their job."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.pipeline import stream_printing_messages
from agentscope.tool import Toolkit, ToolResponse
from agl_testing.scenario import JUDGE, PLANNER, SYSTEM, TOOL_RESULT, WRITER, ScenarioProgram
from openai import DefaultAsyncHttpxClient
from pydantic import BaseModel


def since(feature, name):
    """Skip a test of what older versions do not have."""
    return pytest.mark.skipif(not feature, reason=f"this version has no {name}")


class Price(BaseModel):
    item: str


def text_result(text):
    return ToolResponse(content=[TextBlock(type="text", text=text)])


async def lookup(item: str) -> ToolResponse:
    """Look up what an item costs.

    Args:
        item (str): the item
    """
    return text_result(TOOL_RESULT)


@asynccontextmanager
async def models(job, *, retries=1, **fields):
    """Makes the model that an agent asks, over connections of its own loop and job."""
    connections = DefaultAsyncHttpxClient(verify=False)

    def model(name, **more):
        return OpenAIChatModel(
            job.model(name),
            api_key=job.api_key,
            client_kwargs={
                "base_url": job.base_url,
                "http_client": connections,
                "max_retries": retries,
            },
            **{"stream": False, **fields, **more},
        )

    try:
        yield model
    finally:
        await connections.aclose()


def toolkit(*tools):
    made = Toolkit()
    for tool in tools:
        made.register_tool_function(tool)
    return made


def agent(model, name, *tools, **fields):
    fields.setdefault("formatter", OpenAIChatFormatter())
    made = ReActAgent(name, SYSTEM, model(name), toolkit=toolkit(*tools), **fields)
    made.set_console_output_enabled(False)
    return made


def user(text):
    return Msg("user", text, "user")


async def reply(speaker, text, **fields):
    return (await speaker(user(text), **fields)).get_text_content()


class AgentScopeProgram(ScenarioProgram):
    """Two named agents, one after the other."""

    hides_usage = "models have no hooks: a call's span is that of its request"

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
            answer = await agent(model, WRITER)(user(job.question), structured_model=Price)
            return answer.metadata

    async def parallel(self, job):
        async with models(job) as model:
            agents = [agent(model, PLANNER), agent(model, WRITER)]
            return await asyncio.gather(*(reply(each, job.question) for each in agents))

    def delegate(self, job):
        return asyncio.run(self._delegate(job))

    async def _delegate(self, job):
        async with models(job) as model:
            writer = agent(model, WRITER)

            async def ask_writer(item: str) -> ToolResponse:
                """Ask the writer.

                Args:
                    item (str): the item
                """
                return text_result(await reply(writer, item))

            return await reply(agent(model, PLANNER, ask_writer), job.question)

    def judge(self, job):
        return asyncio.run(self._judge(job))

    async def _judge(self, job):
        async with models(job) as model:

            async def review(item: str) -> ToolResponse:
                """Ask the model behind the judge.

                Args:
                    item (str): the item
                """
                answer = await model(JUDGE)([{"role": "user", "content": item}])
                return text_result(answer.content[0]["text"])

            return await reply(agent(model, PLANNER, review), job.question)

    def fail(self, job, error):
        return asyncio.run(self._fail(job, error))

    async def _fail(self, job, error):
        # Of other tools the framework tells the model what they raise, and goes on.
        async def lookup(item: str):
            """Look up what an item costs.

            Args:
                item (str): the item
            """
            raise error
            yield text_result(item)

        async with models(job) as model:
            return await reply(agent(model, PLANNER, lookup), job.question)


async def streamed(speaker, text):
    """Read what an agent prints to its end and give its last text."""
    final = ""
    async for message, _ in stream_printing_messages([speaker], speaker(user(text))):
        final = message.get_text_content() or final
    return final
