"""The shop assistant of `agent.py` in CrewAI.

The program contains no training code and no line about the tuning of prompts. The environment
variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from agl_demo.world import PLANNER_SYSTEM, lookup_price, writer_request
from crewai import LLM, Agent
from crewai.tools import tool

MODEL = "openai/gpt-4o-mini"
SORRY = "Sorry, I could not find that item."


@tool("lookup", result_as_answer=True)
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


def planner() -> Agent:
    """Create an agent whose prompt has only the instructions and the request, in one message."""
    return Agent(
        role="planner",
        goal="Serve the customer.",
        backstory="A shop.",
        system_template=PLANNER_SYSTEM,
        prompt_template="{input}",
        llm=LLM(model=MODEL, temperature=0, max_tokens=40),
        tools=[lookup],
        max_iter=2,
        respect_context_window=False,
        use_better_compaction=False,
    )


def writer() -> Agent:
    """Create an agent whose system prompt CrewAI makes of role, goal and backstory."""
    return Agent(
        role="writer",
        goal="One short sentence: item, exact price, unit.",
        backstory="You answer customers of a shop.",
        llm=LLM(model=MODEL, temperature=0, max_tokens=20),
        respect_context_window=False,
        use_better_compaction=False,
    )


def answer(question: str) -> str:
    """Answer one customer."""
    planned = planner().kickoff(question)
    results = [each["content"] for each in planned.messages if each["role"] == "tool"]
    if not results:
        return SORRY
    return writer().kickoff(writer_request(question, results[-1])).raw
