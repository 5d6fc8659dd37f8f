"""The scenario's agents in Microsoft Agent Framework, and clients that are closed with their job."""

import asyncio
from contextlib import asynccontextmanager
from typing import ClassVar

from agent_framework import Agent, FunctionMiddleware, MiddlewareFailure
from agent_framework.openai import OpenAIChatCompletionClient
from agl_testing.scenario import JUDGE, PLANNER, SYSTEM, TOOL_RESULT, WRITER, ScenarioProgram
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel


class Price(BaseModel):
    item: str


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


@asynccontextmanager
async def clients(job, *, client_type=OpenAIChatCompletionClient, **fields):
    """Makes the chat client that an agent asks, over connections of its own loop and job."""
    connections = AsyncOpenAI(
        base_url=job.base_url,
        api_key=job.api_key,
        http_client=DefaultAsyncHttpxClient(verify=False),
    )

    def client(agent, **more):
        return client_type(model=job.model(agent), async_client=connections, **fields, **more)

    try:
        yield client
    finally:
        await connections.close()


def agent(client, name, *tools, **fields):
    return Agent(client(name), SYSTEM, name=name, tools=list(tools), **fields)


class FailClosed(FunctionMiddleware):
    """The framework's own way to let a tool's exception end the run."""

    async def process(self, context, call_next):
        try:
            await call_next()
        except Exception as error:
            raise MiddlewareFailure(str(error)) from error


class AgentFrameworkProgram(ScenarioProgram):
    """Two named agents, one after the other."""

    client_type = OpenAIChatCompletionClient
    agent_fields: ClassVar = {}

    def clients(self, job):
        return clients(job, client_type=self.client_type)

    def agent(self, client, name, *tools, **fields):
        return agent(client, name, *tools, **self.agent_fields, **fields)

    def run(self, job):
        return asyncio.run(self.arun(job))

    async def arun(self, job):
        async with self.clients(job) as client:
            plan = await self.agent(client, PLANNER, lookup).run(job.question)
            return (await self.agent(client, WRITER).run(plan.text)).text

    def stream(self, job):
        return asyncio.run(self.astream(job))

    async def astream(self, job):
        async with self.clients(job) as client:
            plan = await streamed(self.agent(client, PLANNER, lookup), job.question)
            return await streamed(self.agent(client, WRITER), plan)

    def structured(self, job):
        return asyncio.run(self._structured(job))

    async def _structured(self, job):
        async with self.clients(job) as client:
            writer = self.agent(client, WRITER)
            response = await writer.run(job.question, options={"response_format": Price})
            return response.value.model_dump()

    async def parallel(self, job):
        async with self.clients(job) as client:
            agents = [self.agent(client, PLANNER), self.agent(client, WRITER)]
            responses = await asyncio.gather(*(agent.run(job.question) for agent in agents))
            return [response.text for response in responses]

    def delegate(self, job):
        return asyncio.run(self._delegate(job))

    async def _delegate(self, job):
        async with self.clients(job) as client:
            writer = self.agent(client, WRITER).as_tool(name="ask_writer", arg_name="item")
            return (await self.agent(client, PLANNER, writer).run(job.question)).text

    def judge(self, job):
        return asyncio.run(self._judge(job))

    async def _judge(self, job):
        async with self.clients(job) as client:

            async def review(item: str) -> str:
                """Ask the model behind the judge."""
                return (await client(JUDGE).get_response([item])).text

            return (await self.agent(client, PLANNER, review).run(job.question)).text

    def fail(self, job, error):
        return asyncio.run(self._fail(job, error))

    async def _fail(self, job, error):
        def lookup(item: str) -> str:
            """Look up what an item costs."""
            raise error

        async with self.clients(job) as client:
            try:
                planner = self.agent(client, PLANNER, lookup)
                return (await planner.run(job.question, middleware=[FailClosed()])).text
            except MiddlewareFailure as failure:
                raise failure.__cause__ from None


async def streamed(agent, text):
    """Read an agent's stream to its end and give its text; updates may replace earlier ones."""
    stream = agent.run(text, stream=True)
    assert [update async for update in stream]
    return (await stream.get_final_response()).text
