"""Programs of two frameworks: whoever speaks is the innermost agent, whichever framework's it is."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

pytest.importorskip("autogen_agentchat")
pytest.importorskip("langgraph")

from agl_testing import _captured
from agl_testing.bench import Bench
from agl_testing.scenario import ANSWER, PLANNER, TOOL_RESULT, WRITER
from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from langgraph.graph import END, START, StateGraph
from openai import DefaultAsyncHttpxClient

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_integrations
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind
from tests.together import frameworks
from tests.together.frameworks import programs

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
FRAMEWORKS = programs()
PAIRS = [*itertools.permutations(FRAMEWORKS, 2)]
NODE = "node"


@pytest.fixture(params=[False, True], ids=["in order", "reversed"])
async def bench(request):
    """All frameworks attached, who is asked first differs."""
    integrations = make_integrations(load_plugins())
    if request.param:
        integrations = integrations[::-1]
    async with Bench.open(integrations=integrations) as bench:
        yield bench


@asynccontextmanager
async def connections():
    client = DefaultAsyncHttpxClient(verify=False)
    try:
        yield client
    finally:
        await client.aclose()


def agents_around(played, span):
    """Names of the agents that a span lies in, the innermost first, and of the tools."""
    around = _captured.ancestors(played.spans, span)
    kinds = (SpanKind.AGENT, SpanKind.TOOL)
    return [
        each.agent if each.kind is SpanKind.AGENT else "tool"
        for each in around
        if each.kind in kinds
    ]


def answered(played):
    if played.error is not None:
        raise played.error
    assert played.output == ANSWER
    return _captured.check_identity(played)


def test_the_frameworks_that_these_tests_need_are_among_those_found():
    assert "autogen" in FRAMEWORKS
    assert "langchain" in FRAMEWORKS
    assert len(FRAMEWORKS) >= 2


@pytest.mark.parametrize(
    "module", ["tests.together.gone", "agl_gone", "autogen_agentchat.gone", "langchain.agents.gone"]
)
def test_a_program_that_cannot_be_imported_is_an_error(monkeypatch, module):
    def fails(name):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(frameworks, "import_module", fails)
    with pytest.raises(ModuleNotFoundError, match=module):
        programs()


def test_a_program_of_a_framework_that_is_not_installed_is_left_out(monkeypatch):
    def fails(name):
        raise ModuleNotFoundError("No module named 'some_framework'", name="some_framework")

    monkeypatch.setattr(frameworks, "import_module", fails)
    assert programs() == {}


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
async def test_an_agent_in_the_tool_of_another_frameworks_agent(bench, outer, inner):
    async def program(job):
        async with connections() as shared:

            async def ask_writer(item):
                return await FRAMEWORKS[inner](job, WRITER, shared, None)

            return await FRAMEWORKS[outer](job, PLANNER, shared, ask_writer)

    played = await bench.one(program)
    spans = answered(played)
    assert [call.agent for call in played.calls] == [PLANNER, WRITER, PLANNER]
    writers = spans[played.calls[1].id]
    assert agents_around(played, writers) == [WRITER, "tool", PLANNER]
    assert len(_captured.triplets(played, PLANNER, WRITER)) == 3


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_agents_of_two_frameworks_one_after_the_other(bench, first, second):
    async def lookup(item):
        return TOOL_RESULT

    async def program(job):
        async with connections() as shared:
            with agent_scope("boss"):
                await FRAMEWORKS[first](job, PLANNER, shared, lookup)
                return await FRAMEWORKS[second](job, WRITER, shared, None)

    played = await bench.one(program)
    spans = answered(played)
    assert [call.agent for call in played.calls] == [PLANNER, PLANNER, WRITER]
    assert agents_around(played, spans[played.calls[2].id]) == [WRITER, "boss"]
    assert len(_captured.triplets(played, "boss", PLANNER, WRITER)) == 3


@pytest.mark.parametrize("inner", [name for name in FRAMEWORKS if name != "langchain"])
async def test_an_agent_in_a_node_of_a_graph(bench, inner):
    async def program(job):
        async with connections() as shared:

            async def node(state):
                return {"said": await FRAMEWORKS[inner](job, WRITER, shared, None)}

            graph = StateGraph(dict)
            graph.add_node(NODE, node)
            graph.add_edge(START, NODE)
            graph.add_edge(NODE, END)
            return (await graph.compile().ainvoke({}))["said"]

    played = await bench.one(program)
    spans = answered(played)
    assert [call.agent for call in played.calls] == [WRITER]
    assert agents_around(played, spans[played.calls[0].id]) == [WRITER]
    assert len(_captured.triplets(played, WRITER, NODE)) == 1


@dataclass
class Asked:
    text: str


@pytest.mark.parametrize("inner", [name for name in FRAMEWORKS if name != "autogen"])
async def test_an_agent_in_the_handler_of_a_message(bench, inner):
    async def program(job):
        async with connections() as shared:

            class Clerk(RoutedAgent):
                @message_handler
                async def on(self, message: Asked, ctx: MessageContext) -> Asked:
                    return Asked(await FRAMEWORKS[inner](job, WRITER, shared, None))

            runtime = SingleThreadedAgentRuntime()
            await Clerk.register(runtime, "clerk", lambda: Clerk("keeps a shop"))
            runtime.start()
            said = await runtime.send_message(Asked("x"), AgentId("clerk", "default"))
            await runtime.stop_when_idle()
            return said.text

    played = await bench.one(program)
    spans = answered(played)
    assert [call.agent for call in played.calls] == [WRITER]
    assert agents_around(played, spans[played.calls[0].id]) == [WRITER]
