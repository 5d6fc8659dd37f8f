"""LangChain and LangGraph through the whole integration contract."""

import asyncio
from pathlib import Path

import langchain_core.tracers.context as tracers
from agl_langchain._integration import LangChainIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.scenario import (
    JUDGE,
    PLANNER,
    SYSTEM,
    TOOL_RESULT,
    WRITER,
    ScenarioProgram,
    outline,
)
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import BaseModel

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"


class Price(BaseModel):
    item: str


class _Models:
    """The chat models of one job, over connections that are closed with it."""

    def __init__(self, job, *, streaming=False):
        self._job = job
        self._streaming = streaming
        self._client = DefaultHttpxClient(verify=False)
        self._async_client = DefaultAsyncHttpxClient(verify=False)

    def __call__(self, agent):
        return ChatOpenAI(
            model=self._job.model(agent),
            base_url=self._job.base_url,
            api_key=self._job.api_key,
            streaming=self._streaming,
            http_client=self._client,
            http_async_client=self._async_client,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._client.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        self._client.close()
        await self._async_client.aclose()


def _agent(models, name, *tools):
    return create_agent(models(name), tools=tools, system_prompt=SYSTEM, name=name)


def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


def _shop(models):
    """Planner and writer as agents in two nodes; the writer sees only what the planner said."""
    planner, writer = _agent(models, PLANNER, lookup), _agent(models, WRITER)

    def plan(state):
        return {"messages": planner.invoke(state)["messages"][-1:]}

    async def aplan(state):
        return {"messages": (await planner.ainvoke(state))["messages"][-1:]}

    def write(state):
        return {"messages": writer.invoke(_handed_on(state))["messages"][-1:]}

    async def awrite(state):
        return {"messages": (await writer.ainvoke(_handed_on(state)))["messages"][-1:]}

    graph = StateGraph(MessagesState)
    graph.add_node("plan", RunnableLambda(plan, aplan))
    graph.add_node("write", RunnableLambda(write, awrite))
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "write")
    graph.add_edge("write", END)
    return graph.compile(name="shop")


def _asked(job):
    return {"messages": [HumanMessage(job.question)]}


def _handed_on(state):
    return {"messages": [HumanMessage(state["messages"][-1].text)]}


def _text(state):
    return state["messages"][-1].text


class LangChainProgram(ScenarioProgram):
    """Two named agents as nodes of one graph."""

    def run(self, job):
        with _Models(job) as models:
            return _text(_shop(models).invoke(_asked(job)))

    async def arun(self, job):
        async with _Models(job) as models:
            return _text(await _shop(models).ainvoke(_asked(job)))

    def stream(self, job):
        with _Models(job, streaming=True) as models:
            for state in _shop(models).stream(_asked(job), stream_mode="values"):
                last = state
            return _text(last)

    async def astream(self, job):
        async with _Models(job, streaming=True) as models:
            async for state in _shop(models).astream(_asked(job), stream_mode="values"):
                last = state
            return _text(last)

    def structured(self, job):
        with _Models(job) as models:
            writer = create_agent(models(WRITER), name=WRITER, response_format=Price)
            return writer.invoke(_asked(job))["structured_response"].model_dump()

    async def parallel(self, job):
        async with _Models(job) as models:
            agents = [_agent(models, PLANNER), _agent(models, WRITER)]
            states = await asyncio.gather(*(agent.ainvoke(_asked(job)) for agent in agents))
            return [_text(state) for state in states]

    def delegate(self, job):
        with _Models(job) as models:
            writer = _agent(models, WRITER)

            def ask_writer(item: str) -> str:
                """Ask the writer."""
                return _text(writer.invoke({"messages": [HumanMessage(item)]}))

            return _text(_agent(models, PLANNER, ask_writer).invoke(_asked(job)))

    def judge(self, job):
        with _Models(job) as models:

            def review(item: str) -> str:
                """Ask the model behind the judge."""
                return models(JUDGE).invoke(item).text

            return _text(_agent(models, PLANNER, review).invoke(_asked(job)))

    def fail(self, job, error):
        def lookup(item: str) -> str:
            """Look up what an item costs."""
            raise error

        with _Models(job) as models:
            return _text(_agent(models, PLANNER, lookup).invoke(_asked(job)))


class TestLangChain(IntegrationContract):
    package = "agl_langchain"
    frameworks = ("langchain_core", "langchain", "langgraph")

    def integration(self):
        return LangChainIntegration()

    def program(self):
        return LangChainProgram()

    def framework_state(self):
        return list(tracers._configure_hooks)


class TestPlugin(PluginContract):
    plugin = "agl_langchain.plugin"
    frameworks = ("langchain_core", "langchain", "langgraph", "openai")


async def test_the_skeleton_is_the_golden_one(bench):
    played = await bench.one(LangChainProgram().run)
    # Chains and nodes are the framework's own, and differ between its versions.
    shown = outline(played.spans, ("agent", "llm", "tool", "message", "reward"))
    assert shown == GOLDEN.read_text(encoding="utf-8").splitlines()
