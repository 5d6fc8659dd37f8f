"""A shop assistant of two agents in LangGraph: the planner looks up a price, the writer reports it.

The program contains no training code and no line about the tuning of prompts. The environment
variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypedDict

from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

MODEL = "gpt-4o-mini"
SORRY = "Sorry, I could not find that item."


class Customer(TypedDict, total=False):
    """State of the graph for one customer."""

    question: str
    result: str | None
    answer: str


@tool
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


def looked_up(reply: AIMessage) -> str | None:
    """Return the result of the planner's tool call; None if it made none, or one that failed."""
    try:
        return lookup.invoke(reply.tool_calls[0]["args"]) if reply.tool_calls else None
    except ValueError:
        return None


@cache
def shop() -> CompiledStateGraph:
    """Build the graph at first use; the clients read address and key from the environment."""
    writer_llm = ChatOpenAI(model=MODEL, temperature=0, max_completion_tokens=20)
    planner_llm = ChatOpenAI(model=MODEL, temperature=0, max_completion_tokens=40)
    planner_llm = planner_llm.bind_tools([lookup])

    def planner(state: Customer) -> dict[str, Any]:
        prompt = [SystemMessage(PLANNER_SYSTEM), HumanMessage(state["question"])]
        return {"result": looked_up(planner_llm.invoke(prompt))}

    def writer(state: Customer) -> dict[str, Any]:
        if state["result"] is None:
            return {"answer": SORRY}
        request = writer_request(state["question"], state["result"])
        return {
            "answer": writer_llm.invoke([SystemMessage(WRITER_SYSTEM), HumanMessage(request)]).text
        }

    graph = StateGraph(Customer)
    graph.add_node("planner", planner)
    graph.add_node("writer", writer)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "writer")
    graph.add_edge("writer", END)
    return graph.compile(name="shop")


def answer(question: str) -> str:
    """Answer one customer."""
    return shop().invoke({"question": question})["answer"]
