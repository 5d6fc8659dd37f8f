"""A shop assistant of two CrewAI agents: one looks a price up, one says it.

An ordinary program: it knows no trainer and runs against the endpoint that ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` name.
"""

from __future__ import annotations

from functools import cache

from agl_crewai import AglEventListener
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from crewai import LLM, Agent
from crewai.tools import tool

MODEL = "openai/gpt-4o-mini"
SORRY = "Sorry, I could not find that item."

AglEventListener()  # the one added line: it records the agents, and does nothing outside a run


@tool("lookup", result_as_answer=True)
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


@cache
def llm() -> LLM:
    """Made on first use: it takes its address and key from the environment."""
    return LLM(model=MODEL)


def assistant(role: str, instructions: str, *tools: object) -> Agent:
    """One agent, with a prompt of its own words: the instructions, then what it is asked."""
    return Agent(
        role=role,
        goal="Serve the customer.",
        backstory="A shop.",
        system_template=instructions,
        prompt_template="{input}",
        llm=llm(),
        tools=list(tools),
        max_iter=2,
        respect_context_window=False,
        use_better_compaction=False,
    )


def answer(question: str) -> str:
    """Answer one customer."""
    planned = assistant("planner", PLANNER_SYSTEM, lookup).kickoff(question)
    results = [each["content"] for each in planned.messages if each["role"] == "tool"]
    if not results:
        return SORRY
    request = writer_request(question, results[-1])
    return assistant("writer", WRITER_SYSTEM).kickoff(request).raw
