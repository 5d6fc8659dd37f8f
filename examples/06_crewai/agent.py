"""A shop assistant of two CrewAI agents: one looks up a price, one reports it.

The environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint. One line is
added for training.
"""

from __future__ import annotations

from functools import cache

from agl_crewai import AglEventListener
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from crewai import LLM, Agent
from crewai.tools import tool

MODEL = "openai/gpt-4o-mini"
SORRY = "Sorry, I could not find that item."

AglEventListener()  # the added line: records the agents during training, otherwise does nothing


@tool("lookup", result_as_answer=True)
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


@cache
def llm() -> LLM:
    """Create the client at first use; it reads address and key from the environment."""
    return LLM(model=MODEL)


def assistant(role: str, instructions: str, *tools: object) -> Agent:
    """Create an agent whose prompt has only the instructions and the request."""
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
