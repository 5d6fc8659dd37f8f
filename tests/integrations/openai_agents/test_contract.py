"""The OpenAI Agents SDK through the whole integration contract."""

import asyncio
from typing import ClassVar

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents.tracing import get_trace_provider
from agents.tracing.processors import default_processor
from agl_openai_agents._integration import OpenAIAgentsIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.scenario import (
    JUDGE,
    PLANNER,
    SYSTEM,
    TOOL,
    TOOL_RESULT,
    WRITER,
    ScenarioProgram,
)
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel


class Price(BaseModel):
    item: str


@function_tool
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


class OpenAIAgentsProgram(ScenarioProgram):
    """Two agents, one run after the other; the writer sees only what the planner said."""

    lacks: ClassVar = {
        "stream": "Runner.run_streamed starts a task and so needs a running event loop",
    }
    wraps_errors = "Runner raises UserError('Error running tool ...') from a tool's exception"
    model: ClassVar = OpenAIChatCompletionsModel

    def run(self, job):
        return self._in_a_loop_of_its_own(job, self._shop_sync)

    async def arun(self, job):
        async with _client(job) as client:
            plan = await Runner.run(self._agent(job, client, PLANNER, lookup), job.question)
            done = await Runner.run(self._agent(job, client, WRITER), plan.final_output)
            return done.final_output

    async def astream(self, job):
        async with _client(job) as client:
            plan = await _streamed(self._agent(job, client, PLANNER, lookup), job.question)
            return await _streamed(self._agent(job, client, WRITER), plan)

    def structured(self, job):
        def ask(job, client):
            writer = self._agent(job, client, WRITER, output_type=Price)
            return Runner.run_sync(writer, job.question).final_output.model_dump()

        return self._in_a_loop_of_its_own(job, ask)

    async def parallel(self, job):
        async with _client(job) as client:
            agents = [self._agent(job, client, name) for name in (PLANNER, WRITER)]
            done = await asyncio.gather(*(Runner.run(agent, job.question) for agent in agents))
            return [each.final_output for each in done]

    def delegate(self, job):
        def plan(job, client):
            writer = self._agent(job, client, WRITER)

            @function_tool
            async def ask_writer(item: str) -> str:
                """Ask the writer."""
                return (await Runner.run(writer, item)).final_output

            planner = self._agent(job, client, PLANNER, ask_writer)
            return Runner.run_sync(planner, job.question).final_output

        return self._in_a_loop_of_its_own(job, plan)

    def judge(self, job):
        @function_tool
        def review(item: str) -> str:
            """Ask the model behind the judge."""
            with OpenAI(base_url=job.base_url, api_key=job.api_key) as client:
                messages = [{"role": "user", "content": item}]
                answer = client.chat.completions.create(model=job.model(JUDGE), messages=messages)
                return answer.choices[0].message.content

        return self._in_a_loop_of_its_own(job, lambda job, client: self._ask(job, client, review))

    def fail(self, job, error):
        @function_tool(name_override=TOOL, failure_error_function=None)
        def broken(item: str) -> str:
            """Look up what an item costs."""
            raise error

        return self._in_a_loop_of_its_own(job, lambda job, client: self._ask(job, client, broken))

    def _shop_sync(self, job, client):
        plan = self._ask(job, client, lookup)
        return Runner.run_sync(self._agent(job, client, WRITER), plan).final_output

    def _ask(self, job, client, tool):
        return Runner.run_sync(self._agent(job, client, PLANNER, tool), job.question).final_output

    def _agent(self, job, client, name, *tools, **fields):
        model = self.model(model=job.model(name), openai_client=client)
        return Agent(name=name, instructions=SYSTEM, model=model, tools=list(tools), **fields)

    def _in_a_loop_of_its_own(self, job, work):
        """`Runner.run_sync` makes a loop for a thread and leaves it to whoever began the thread."""
        client = _client(job)
        try:
            return work(job, client)
        finally:
            loop = asyncio.get_event_loop_policy().get_event_loop()
            loop.run_until_complete(client.close())
            loop.close()
            asyncio.set_event_loop(None)


def _client(job):
    return AsyncOpenAI(base_url=job.base_url, api_key=job.api_key)


async def _streamed(agent, text):
    result = Runner.run_streamed(agent, text)
    async for _ in result.stream_events():
        pass
    return result.final_output


class TestOpenAIAgents(IntegrationContract):
    package = "agl_openai_agents"
    frameworks = ("agents",)

    def integration(self):
        return OpenAIAgentsIntegration()

    def program(self):
        return OpenAIAgentsProgram()

    def framework_state(self):
        provider = get_trace_provider()
        touched = [set(vars(each)) for each in (provider, default_processor())]
        return provider, provider._multi_processor._processors, touched


class ResponsesProgram(OpenAIAgentsProgram):
    """The same over the API that the SDK uses by itself."""

    model = OpenAIResponsesModel


class TestResponses(TestOpenAIAgents):
    def program(self):
        return ResponsesProgram()


class TestPlugin(PluginContract):
    plugin = "agl_openai_agents.plugin"
    frameworks = ("agents", "openai")
