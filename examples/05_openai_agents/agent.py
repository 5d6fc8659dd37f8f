"""A shop assistant of two agents of the OpenAI Agents SDK: one looks a price up, one says it.

An ordinary program: it knows no trainer and runs against the endpoint that ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` name.
"""

from __future__ import annotations

from agents import Agent, ModelBehaviorError, Runner, ToolCallOutputItem, function_tool
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request

MODEL = "gpt-4o-mini"
SORRY = "Sorry, I could not find that item."
NOTHING = ""
"""What the tool gives for an item that the shop does not sell."""


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
    """Let the planner look the price up; `NOTHING` when it did not, or asked for another item."""
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
