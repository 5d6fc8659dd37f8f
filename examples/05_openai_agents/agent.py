"""A shop assistant with the OpenAI Agents SDK: one agent looks up a price, one reports it.

The program contains no training code. The environment variables ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from agents import Agent, ModelBehaviorError, Runner, ToolCallOutputItem, function_tool
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request

MODEL = "gpt-4o-mini"
SORRY = "Sorry, I could not find that item."
NOTHING = ""
"""The tool's result for an item that the shop does not sell."""


@function_tool(failure_error_function=lambda context, error: NOTHING)  # noqa: ARG005
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


planner = Agent(
    name="planner",
    instructions=PLANNER_SYSTEM,
    model=MODEL,
    tools=[lookup],
    tool_use_behavior="stop_on_first_tool",
)
writer = Agent(name="writer", instructions=WRITER_SYSTEM, model=MODEL)


async def plan(question: str) -> str:
    """Let the planner look up the price; return `NOTHING` if it failed or did not call the tool."""
    try:
        run = await Runner.run(planner, question)
    except ModelBehaviorError:
        return NOTHING
    found = [item.output for item in run.new_items if isinstance(item, ToolCallOutputItem)]
    return str(found[0]) if found else NOTHING


async def answer(question: str) -> str:
    """Answer one customer."""
    result = await plan(question)
    if result == NOTHING:
        return SORRY
    run = await Runner.run(writer, writer_request(question, result))
    return str(run.final_output)
