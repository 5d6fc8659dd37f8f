"""A shop assistant of two AgentScope agents: one looks a price up, one says it.

An ordinary program: it knows no trainer and runs against the endpoint that ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` name.
"""

from __future__ import annotations

import os
from functools import cache

from agentscope.agent import Agent, InjectionConfig, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import ToolResultBlock, ToolResultState, UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from agl_agentscope import AglMiddleware
from agl_demo.world import PLANNER_SYSTEM, WRITER_SYSTEM, lookup_price, writer_request

SORRY = "Sorry, I could not find that item."
RECORD = [AglMiddleware()]
"""The one added line: it records the agents, and does nothing outside a run."""
ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="It only reads.")
NO_CLOCK = InjectionConfig(inject_runtime_state=False)
"""Equal questions make equal prompts: the framework would add the time of day."""
CANCELLED = ReActConfig(interruption_raise_cancelled_error=True)
"""A reply that is cancelled ends: the framework would answer that it was interrupted, and continue."""
ONE_TOOL = CANCELLED.model_copy(update={"max_iters": 1})
"""The tool is used once. The framework then asks for a closing message, which is not used."""


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


@cache
def model() -> OpenAIChatModel:
    """Made on first use: the address is that of the environment."""
    credential = OpenAICredential(
        api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ["OPENAI_BASE_URL"]
    )
    return OpenAIChatModel(credential, "gpt-4o-mini", stream=False)


def user(text: str) -> UserMsg:
    return UserMsg(name="user", content=text)


async def plan(question: str) -> str | None:
    """Let the planner look the price up; None when it did not, or asked for another item."""
    planner = Agent(
        "planner",
        PLANNER_SYSTEM,
        model(),
        Toolkit(tools=[FunctionTool(lookup, permission=ALLOWED)]),
        RECORD,
        react_config=ONE_TOOL,
        injection_config=NO_CLOCK,
    )
    await planner.reply(user(question))
    for block in planner.state.context[-1].content:
        if isinstance(block, ToolResultBlock) and block.state == ToolResultState.SUCCESS:
            return "".join(part.text for part in block.output)
    return None


async def answer(question: str) -> str:
    """Answer one customer, with agents of its own: an agent keeps its conversation."""
    result = await plan(question)
    if result is None:
        return SORRY
    writer = Agent(
        "writer",
        WRITER_SYSTEM,
        model(),
        middlewares=RECORD,
        react_config=CANCELLED,
        injection_config=NO_CLOCK,
    )
    reply = await writer.reply(user(writer_request(question, result)))
    return reply.get_text_content() or ""
