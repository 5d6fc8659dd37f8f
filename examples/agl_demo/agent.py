"""A shop assistant of two agents in LangGraph: the planner looks up a price, the writer reports it.

The program contains no training code. It runs against any OpenAI-compatible endpoint; the
environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set it.
"""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request

MAX_TOKENS = 40
SORRY = "Sorry, I could not find that item."
"""The answer if the planner made no tool call, or one for an unknown item."""


class Conversation(TypedDict, total=False):
    """State of the graph for one customer."""

    question: str
    messages: Annotated[list[AnyMessage], add_messages]
    answer: str


@tool
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


def build(model: str | None = None) -> CompiledStateGraph:
    """Compile the graph; ``model`` defaults to the environment's ``OPENAI_MODEL``.

    The graph's HTTP connections are bound to the event loop that first uses them.
    """
    llm = ChatOpenAI(
        model=model or os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
        max_completion_tokens=MAX_TOKENS,
        # The default clients are shared in the whole process, also across event loops.
        http_client=DefaultHttpxClient(),
        http_async_client=DefaultAsyncHttpxClient(),
    )
    planner_llm = llm.bind_tools([lookup])

    def plan(state: Conversation) -> Command:
        return _after_planner(planner_llm.invoke(_planner_prompt(state)))

    async def aplan(state: Conversation) -> Command:
        return _after_planner(await planner_llm.ainvoke(_planner_prompt(state)))

    def write(state: Conversation) -> dict[str, Any]:
        prompt = _writer_prompt(state)
        return _written(llm.invoke(prompt)) if prompt else {"answer": SORRY}

    async def awrite(state: Conversation) -> dict[str, Any]:
        prompt = _writer_prompt(state)
        return _written(await llm.ainvoke(prompt)) if prompt else {"answer": SORRY}

    graph = StateGraph(Conversation)
    graph.add_node("planner", RunnableLambda(plan, aplan), destinations=("tools", END))
    graph.add_node("tools", ToolNode([lookup], handle_tool_errors=True))
    graph.add_node("writer", RunnableLambda(write, awrite))
    graph.add_edge(START, "planner")
    graph.add_edge("tools", "writer")
    graph.add_edge("writer", END)
    return graph.compile(name="shop")


def _planner_prompt(state: Conversation) -> list[AnyMessage]:
    return [SystemMessage(PLANNER_SYSTEM), HumanMessage(state["question"])]


def _after_planner(reply: AIMessage) -> Command:
    if reply.tool_calls:
        return Command(update={"messages": [reply]}, goto="tools")
    return Command(update={"messages": [reply], "answer": SORRY}, goto=END)


def _writer_prompt(state: Conversation) -> list[AnyMessage] | None:
    """Return the writer's messages, or None if the tool failed."""
    result = state["messages"][-1]
    if not isinstance(result, ToolMessage) or result.status == "error":
        return None
    request = writer_request(state["question"], result.text)
    return [SystemMessage(WRITER_SYSTEM), HumanMessage(request)]


def _written(reply: AIMessage) -> dict[str, Any]:
    return {"messages": [reply], "answer": reply.text}


def answer(question: str, config: RunnableConfig | None = None) -> str:
    """Answer one customer; ``config`` is passed to LangGraph, including callbacks."""
    return _shop(_endpoint(), None).invoke({"question": question}, config)["answer"]


async def aanswer(question: str, config: RunnableConfig | None = None) -> str:
    """Answer one customer; any number of calls may run concurrently on one event loop."""
    graph = _shop(_endpoint(), asyncio.get_running_loop())
    return (await graph.ainvoke({"question": question}, config))["answer"]


def _endpoint() -> tuple[str | None, ...]:
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")
    return tuple(os.environ.get(name) for name in names)


@lru_cache(maxsize=8)
def _shop(
    endpoint: tuple[str | None, ...],  # noqa: ARG001
    loop: asyncio.AbstractEventLoop | None,  # noqa: ARG001
) -> CompiledStateGraph:
    """Build the graph once for each endpoint and event loop."""
    return build()
