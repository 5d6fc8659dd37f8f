"""Seats that are played by agents of AgentScope 2.

The environment variables ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL`` set the
endpoint. One line is added for training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from agentscope.agent import Agent, InjectionConfig, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.model import OpenAIChatModel
from agentscope.state import AgentState
from agl_agentscope import AglMiddleware

from werewolf import prompts
from werewolf.asking import Request

RECORD = AglMiddleware()
"""The added line: records the agents during training, otherwise does nothing."""
NO_CLOCK = InjectionConfig(inject_runtime_state=False)
"""Omits the time of day, so that equal games give equal prompts."""
CANCELLED = ReActConfig(interruption_raise_cancelled_error=True)
"""Makes a cancelled reply raise: by default the framework answers that it was interrupted."""


@cache
def model() -> OpenAIChatModel:
    """Create the model at first use; the environment sets address, key and name."""
    credential = OpenAICredential(
        api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ["OPENAI_BASE_URL"]
    )
    return OpenAIChatModel(credential, os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), stream=False)


class Seat:
    """One seat, played by an agent that is named after it.

    Each question begins a new conversation, in which the seat corrects unclear answers; an agent
    that remembers has one for the game.
    """

    def __init__(
        self, style: prompts.Style = prompts.FULL, middlewares: Sequence[MiddlewareBase] = ()
    ) -> None:
        """Take how much the agent reads, and what wraps its calls."""
        self.style = style
        self.middlewares = [*middlewares, RECORD]
        self.agent: Agent | None = None
        self.read = 0

    async def answer(self, request: Request) -> str:
        """Ask the agent."""
        if self.agent is None:
            self.agent = Agent(
                prompts.name(request.seat),
                prompts.system(request, self.style),
                model(),
                middlewares=self.middlewares,
                react_config=CANCELLED,
                injection_config=NO_CLOCK,
            )
        elif not (request.problem or self.style.remembers):
            self.agent.state = AgentState()
        text = prompts.user(request, self.style, self.read)
        if self.style.remembers:
            self.read = len(request.lines)
        reply = await self.agent.reply(UserMsg(name="user", content=text))
        return prompts.spoken(reply.get_text_content() or "")
