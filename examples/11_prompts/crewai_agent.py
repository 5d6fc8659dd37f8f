"""The shop assistant of `agent.py` in CrewAI.

The program contains no training code and no line about the tuning of prompts. The environment
variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request
from crewai import LLM, Agent
from crewai.tools import tool

MODEL = "openai/gpt-4o-mini"
SORRY = "Sorry, I could not find that item."


@tool("lookup", result_as_answer=True)
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


def assistant(role: str, instructions: str, *tools: object, max_tokens: int) -> Agent:
    """Create an agent whose prompt has only the instructions and the request."""
    return Agent(
        role=role,
        goal="Serve the customer.",
        backstory="A shop.",
        system_template=instructions,
        prompt_template="{input}",
        llm=LLM(model=MODEL, temperature=0, max_tokens=max_tokens),
        tools=list(tools),
        max_iter=2,
        respect_context_window=False,
        use_better_compaction=False,
    )


def answer(question: str) -> str:
    """Answer one customer."""
    planned = assistant("planner", PLANNER_SYSTEM, lookup, max_tokens=40).kickoff(question)
    results = [each["content"] for each in planned.messages if each["role"] == "tool"]
    if not results:
        return SORRY
    request = writer_request(question, results[-1])
    return assistant("writer", WRITER_SYSTEM, max_tokens=20).kickoff(request).raw
