"""AgentScope 2, which OpenInference does not instrument, so there is no comparison."""

from __future__ import annotations

from typing import Any

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from clock import Clock
from constant_model import PRICE, URL

ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="It only reads.")
NO_CLOCK = InjectionConfig(inject_runtime_state=False)


async def lookup(item: str) -> str:
    """Look up what an item costs."""
    return PRICE


def program() -> Any:
    """Return a function that asks a new agent each time, since an agent remembers its questions."""
    model = OpenAIChatModel(OpenAICredential(api_key="none", base_url=URL), "policy", stream=False)
    toolkit = Toolkit(tools=[FunctionTool(lookup, permission=ALLOWED)])

    async def ask(question: str) -> None:
        agent = Agent("clerk", "You keep a shop.", model, toolkit, injection_config=NO_CLOCK)
        await agent.reply(UserMsg(name="user", content=question))

    return ask


def enter_agl(clock: Clock) -> None:
    """Time the middleware's methods, and the wrapper of each model request."""
    from agl_agentscope._v2 import calls
    from agl_agentscope._v2.middleware import AglMiddleware

    for name in ("on_reply", "on_model_call", "on_acting"):
        setattr(AglMiddleware, name, _handing_on(getattr(AglMiddleware, name), clock))
    recorded = clock.ours(calls._recorded)

    def recorded_timed(request: Any, *args: Any) -> Any:
        return clock.ours(recorded(clock.theirs(request), *args))

    calls._recorded = clock.theirs(recorded_timed)  # excludes the clock's own wrapping


def _handing_on(method: Any, clock: Clock) -> Any:
    timed = clock.ours(method)

    def call(middleware: Any, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return timed(middleware, agent, input_kwargs, clock.theirs(next_handler))

    return call
