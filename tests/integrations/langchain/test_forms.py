"""Every way of calling a model, from two graph nodes at once: the join names the right one."""

import asyncio
from typing import Annotated, TypedDict

import openai
import pytest
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import PLANNER, WRITER
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel

from agl_core.types import SpanKind

Q = [HumanMessage("What is the price of tea?")]
PROMPT = ChatPromptTemplate.from_messages([("user", "{question}")])


class Price(BaseModel):
    item: str


class State(TypedDict, total=False):
    names: Annotated[list[str], lambda left, right: left + right]


def batch(llm):
    return llm.batch([Q, Q, Q])


def parallel(llm):
    return RunnableParallel(a=llm, b=llm, c=llm | StrOutputParser()).invoke(Q)


def sequence_stream(llm):
    return list((PROMPT | llm | StrOutputParser()).stream({"question": "tea?"}))


def several_prompts(llm):
    return llm.generate([Q, Q])


def structured(llm):
    assert llm.with_structured_output(Price).invoke(Q) == Price(item="tea")


def structured_by_tool(llm):
    assert llm.with_structured_output(Price, method="function_calling").invoke(Q).item == "tea"


def with_fallback(llm):
    def broken(_):
        raise ValueError("out of order")

    return RunnableLambda(broken).with_fallbacks([llm]).invoke(Q)


def nested_streams(llm):
    """A second call between the chunks of the first."""
    return [llm.invoke(Q) for number, _ in enumerate(llm.stream(Q)) if number < 2]


def plain_client(llm):
    """The bare client in a node, before and after a call of the framework's."""
    with openai.OpenAI(
        base_url=llm.openai_api_base, api_key=llm.openai_api_key.get_secret_value()
    ) as client:
        for _ in range(2):
            messages = [{"role": "user", "content": "tea?"}]
            client.chat.completions.create(model=llm.model_name, messages=messages)
            llm.invoke(Q)
            list(llm.stream(Q))


# langchain-openai 1.0 warns of what it parsed itself, with us and without; 1.2 does not.
PARSED_ANSWER = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
SYNC = [
    lambda llm: llm.invoke(Q),
    lambda llm: list(llm.stream(Q)),
    batch,
    parallel,
    sequence_stream,
    several_prompts,
    pytest.param(structured, marks=PARSED_ANSWER),
    structured_by_tool,
    with_fallback,
    nested_streams,
    plain_client,
]


async def ainvoke(llm):
    await llm.ainvoke(Q)


async def astream(llm):
    return [chunk async for chunk in llm.astream(Q)]


async def abatch(llm):
    return await llm.abatch([Q, Q, Q])


async def gathered(llm):
    return await asyncio.gather(*(llm.ainvoke(Q) for _ in range(3)))


async def aparallel(llm):
    return await RunnableParallel(a=llm, b=llm).ainvoke(Q)


async def several_prompts_async(llm):
    return await llm.agenerate([Q, Q, Q])


async def events(llm):
    return [event async for event in (llm | StrOutputParser()).astream_events(Q)]


async def sequence_astream(llm):
    chain = PROMPT | llm | StrOutputParser()
    return [chunk async for chunk in chain.astream({"question": "tea?"})]


async def plain_async_client(llm):
    async with openai.AsyncOpenAI(
        base_url=llm.openai_api_base, api_key=llm.openai_api_key.get_secret_value()
    ) as client:
        for _ in range(2):
            messages = [{"role": "user", "content": "tea?"}]
            await client.chat.completions.create(model=llm.model_name, messages=messages)
            await llm.ainvoke(Q)


async def nested_astreams(llm):
    async for _ in llm.astream(Q):
        await llm.ainvoke(Q)


ASYNC = [
    ainvoke,
    astream,
    abatch,
    gathered,
    aparallel,
    several_prompts_async,
    events,
    sequence_astream,
    plain_async_client,
    nested_astreams,
]


def graph_of(nodes):
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(name="shop")


def check(played, bench, *, failing=()):
    if played.error is not None:
        raise played.error
    check_tokens(played, bench.fake.log)
    spans = check_identity(played)
    assert {span.agent for span in spans.values()} == {PLANNER, WRITER}
    assert {span.name for span in played.spans if span.status != "ok"} == set(failing)
    agents = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert sorted(span.name for span in agents) == [PLANNER, WRITER]
    for span in spans.values():
        (agent,) = [each for each in agents if each.agent == span.agent]
        assert span.agent_run_id == agent.agent_run_id
    assert played.adapt(PLANNER, WRITER).seen == {PLANNER, WRITER}


@pytest.mark.parametrize("form", SYNC, ids=lambda form: form.__name__)
async def test_sync_forms_in_parallel_nodes(bench, chat, form):
    def action(job):
        models = {name: chat(job, name) for name in (PLANNER, WRITER)}
        nodes = {name: _node(form, llm) for name, llm in models.items()}
        graph_of(nodes).invoke({})

    check(await bench.one(action), bench, failing=["broken"] if form is with_fallback else [])


@pytest.mark.parametrize("form", ASYNC, ids=lambda form: form.__name__)
async def test_async_forms_in_parallel_nodes(bench, chat, form):
    async def action(job):
        models = {name: chat(job, name) for name in (PLANNER, WRITER)}
        nodes = {name: _anode(form, llm) for name, llm in models.items()}
        await graph_of(nodes).ainvoke({})
        for llm in models.values():
            await llm.http_async_client.aclose()

    check(await bench.one(action), bench)


@pytest.mark.parametrize("mode", ["values", "updates", "messages"])
async def test_streamed_graphs(bench, chat, mode):
    def action(job):
        nodes = {name: _node(SYNC[0], chat(job, name)) for name in (PLANNER, WRITER)}
        assert list(graph_of(nodes).stream({}, stream_mode=mode))

    check(await bench.one(action), bench)


@pytest.mark.parametrize("form", ["astream", "astream_events"])
async def test_graphs_streamed_in_tasks(bench, chat, form):
    async def action(job):
        models = {name: chat(job, name) for name in (PLANNER, WRITER)}
        graph = graph_of({name: _anode(ainvoke, llm) for name, llm in models.items()})
        options = {"stream_mode": "updates"} if form == "astream" else {"version": "v2"}
        assert [each async for each in getattr(graph, form)({}, **options)]
        for llm in models.values():
            await llm.http_async_client.aclose()

    check(await bench.one(action), bench)


async def test_sent_copies_of_a_node_are_runs_of_their_own(bench, chat):
    def action(job):
        llm = chat(job, WRITER)
        graph = StateGraph(State)
        graph.add_node(WRITER, _node(SYNC[0], llm))
        graph.add_conditional_edges(START, lambda state: [Send(WRITER, state)] * 3, [WRITER])
        graph.compile().invoke({})

    bench.interleave(3)
    played = await bench.one(action)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    spans = check_identity(played)
    assert len({span.agent_run_id for span in spans.values()}) == 3


def _node(form, llm):
    def node(state):
        form(llm)
        return {"names": []}

    return node


def _anode(form, llm):
    async def node(state):
        await form(llm)
        return {"names": []}

    return node
