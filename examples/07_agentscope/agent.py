"""A shop assistant of two AgentScope agents: one looks up a price, one reports it.

The environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint. One line is
added for training.
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
"""The added line: records the agents during training, otherwise does nothing."""
ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="It only reads.")
NO_CLOCK = InjectionConfig(inject_runtime_state=False)
"""Omits the time of day, so that equal questions give equal prompts."""
CANCELLED = ReActConfig(interruption_raise_cancelled_error=True)
"""Makes a cancelled reply raise: by default the framework answers that it was interrupted, and
continues."""
ONE_TOOL = CANCELLED.model_copy(update={"max_iters": 1})
"""Allows one tool call. The framework then requests a closing message, which is not used."""


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return lookup_price(item)


@cache
def model() -> OpenAIChatModel:
    """Create the model at first use; the environment sets address and key."""
    credential = OpenAICredential(
        api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ["OPENAI_BASE_URL"]
    )
    return OpenAIChatModel(credential, "gpt-4o-mini", stream=False)


def user(text: str) -> UserMsg:
    return UserMsg(name="user", content=text)


async def plan(question: str) -> str | None:
    """Let the planner look up the price; return None if it failed or did not call the tool."""
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
    """Answer one customer with new agents, as an agent keeps its conversation."""
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
