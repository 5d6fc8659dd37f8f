"""Answers questions about a SQLite database in LangGraph: write, execute, check, rewrite.

The program contains no training code. It runs against any OpenAI-compatible endpoint; the
environment variables ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL`` set it.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import database
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from openai import DefaultHttpxClient

MOST_TURNS = 3
"""Queries of one answer."""
SYSTEM = {
    "write": "Write one SQLite query that answers the question.",
    "check": "Does the result answer the question? Say correct or wrong.",
    "rewrite": "The query is wrong. Write another SQLite query that answers the question.",
}
_FENCE = re.compile(r"```(?:\w+\n)?(.*?)(?:```|$)", re.DOTALL)


class State(TypedDict, total=False):
    """State of the graph for one question."""

    question: str
    database: Path
    schema: str
    query: str
    result: str
    verdict: str
    turns: int


def prompt(node: str, state: State) -> list[dict[str, str]]:
    """Return the messages of a node that asks the model."""
    lines = [state["schema"], state["question"]]
    if node != "write":
        lines += [f"Query: {state['query']}", f"Result: {state['result']}"]
    return [
        {"role": "system", "content": SYSTEM[node]},
        {"role": "user", "content": "\n".join(lines)},
    ]


def query_of(answer: str) -> str:
    """Return the query in an answer: a fenced block if there is one, else the whole answer."""
    fenced = _FENCE.search(answer)
    return (fenced[1] if fenced else answer).strip()


def write(state: State) -> dict[str, Any]:
    """Write the first query."""
    return {"query": query_of(ask("write", state))}


def execute(state: State) -> dict[str, Any]:
    """Run the query on the copy of the database."""
    result = database.run(state["database"], state["query"])
    return {"result": result.text(), "turns": state["turns"] + 1}


def check(state: State) -> dict[str, Any]:
    """Ask whether the result answers the question."""
    return {"verdict": ask("check", state)}


def rewrite(state: State) -> dict[str, Any]:
    """Write another query."""
    return {"query": query_of(ask("rewrite", state))}


def ask(node: str, state: State) -> str:
    """Ask the model for the answer of a node."""
    return model().invoke(prompt(node, state)).text


def after_execute(state: State) -> str:
    """Check a result unless no turn is left to use the verdict."""
    return "check" if state["turns"] < MOST_TURNS else END


def after_check(state: State) -> str:
    """End with a query that was found correct; what the verdict does not say is rewritten."""
    return END if state["verdict"].strip().lower().startswith("correct") else "rewrite"


@cache
def graph() -> CompiledStateGraph:
    """Compile the graph at first use."""
    flow = StateGraph(State)
    for node in (write, execute, check, rewrite):
        flow.add_node(node.__name__, node)
    flow.add_edge(START, "write")
    flow.add_edge("write", "execute")
    flow.add_conditional_edges("execute", after_execute, ["check", END])
    flow.add_conditional_edges("check", after_check, ["rewrite", END])
    flow.add_edge("rewrite", "execute")
    return flow.compile(name="sql")


@cache
def model() -> ChatOpenAI:
    """Create the client at first use; it reads address and key from the environment."""
    return ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
        # The default client is shared in the whole process.
        http_client=DefaultHttpxClient(),
    )


def answer(question: str, path: Path, config: RunnableConfig | None = None) -> State:
    """Answer a question on a copy of the database; ``config`` is passed to LangGraph."""
    with database.copied(path) as copy:
        start = State(question=question, database=copy, schema=database.schema(copy), turns=0)
        return State(**graph().invoke(start, config))
