"""AutoGen through the whole integration contract."""

import asyncio

import pytest
from agl_autogen._integration import AutoGenIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.scenario import JUDGE, PLANNER, SYSTEM, TOOL_RESULT, WRITER, ScenarioProgram
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import BaseAgent
from autogen_core.models import UserMessage
from autogen_core.tools import BaseStreamTool, BaseTool, FunctionTool
from autogen_ext.models.openai import BaseOpenAIChatCompletionClient, OpenAIChatCompletionClient
from openai import DefaultAsyncHttpxClient
from pydantic import BaseModel

# What the client library says of structured output that AutoGen dumps for its own log.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

KNOWS = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


class Price(BaseModel):
    item: str


class _Models:
    """The clients of one job, over connections that are closed with it."""

    def __init__(self, job):
        self._job = job
        self._http_client = DefaultAsyncHttpxClient(verify=False)

    def __call__(self, agent):
        return OpenAIChatCompletionClient(
            model=self._job.model(agent),
            base_url=self._job.base_url,
            api_key=self._job.api_key,
            model_info=KNOWS,
            http_client=self._http_client,
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        await self._http_client.aclose()


def _agent(models, name, *tools, **options):
    return AssistantAgent(
        name,
        models(name),
        tools=list(tools),
        system_message=SYSTEM,
        max_tool_iterations=2,
        **options,
    )


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


async def _said(agent, task):
    return (await agent.run(task=task)).messages[-1].content


async def _read(agent, task):
    async for message in agent.run_stream(task=task):
        last = message
    return last.messages[-1].content


class AutoGenProgram(ScenarioProgram):
    """Two agents of agentchat; AutoGen is async, so the sync forms run a loop of their own."""

    def run(self, job):
        return asyncio.run(self.arun(job))

    async def arun(self, job):
        async with _Models(job) as models:
            plan = await _said(_agent(models, PLANNER, lookup), job.question)
            return await _said(_agent(models, WRITER), plan)

    def stream(self, job):
        return asyncio.run(self.astream(job))

    async def astream(self, job):
        async with _Models(job) as models:
            streamed = {"model_client_stream": True}
            plan = await _read(_agent(models, PLANNER, lookup, **streamed), job.question)
            return await _read(_agent(models, WRITER, **streamed), plan)

    def structured(self, job):
        async def ask():
            async with _Models(job) as models:
                writer = _agent(models, WRITER, output_content_type=Price)
                return (await _said(writer, job.question)).model_dump()

        return asyncio.run(ask())

    async def parallel(self, job):
        async with _Models(job) as models:
            agents = [_agent(models, PLANNER), _agent(models, WRITER)]
            return await asyncio.gather(*(_said(agent, job.question) for agent in agents))

    def delegate(self, job):
        async def ask():
            async with _Models(job) as models:
                writer = _agent(models, WRITER)

                async def ask_writer(item: str) -> str:
                    """Ask the writer."""
                    return await _said(writer, item)

                return await _said(_agent(models, PLANNER, ask_writer), job.question)

        return asyncio.run(ask())

    def judge(self, job):
        async def ask():
            async with _Models(job) as models:

                async def review(item: str) -> str:
                    """Ask the model behind the judge."""
                    asked = [UserMessage(content=item, source="user")]
                    return (await models(JUDGE).create(asked)).content

                return await _said(_agent(models, PLANNER, review), job.question)

        return asyncio.run(ask())

    def fail(self, job, error):
        """What a tool raises, AutoGen tells the model; what the formatter raises, nobody catches."""

        def tell(call, result):
            raise error

        async def ask():
            async with _Models(job) as models:
                planner = AssistantAgent(
                    PLANNER, models(PLANNER), tools=[lookup], tool_call_summary_formatter=tell
                )
                return await _said(planner, job.question)

        return asyncio.run(ask())


class TestAutoGen(IntegrationContract):
    package = "agl_autogen"
    frameworks = ("autogen_agentchat", "autogen_core", "autogen_ext")

    def integration(self):
        return AutoGenIntegration()

    def program(self):
        return AutoGenProgram()

    def framework_state(self):
        owners = [
            *(BaseAgent, BaseGroupChat, BaseTool, BaseStreamTool, FunctionTool),
            *(BaseOpenAIChatCompletionClient, BaseChatAgent, AssistantAgent),
        ]
        return [dict(vars(owner)) for owner in owners]


class TestPlugin(PluginContract):
    plugin = "agl_autogen.plugin"
    frameworks = ("autogen_agentchat", "autogen_core", "autogen_ext", "openai")
