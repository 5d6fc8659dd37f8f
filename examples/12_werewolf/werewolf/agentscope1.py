"""Seats that are played by agents of AgentScope 1.

The environment variables ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL`` set the
endpoint. The program contains no training code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import FormatterBase, OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel

from werewolf import prompts
from werewolf.asking import Request


class Player(ReActAgent):
    """An agent that raises when cancelled: by default it answers and continues."""

    async def handle_interrupt(self, *_: Any, **__: Any) -> Msg:
        raise asyncio.CancelledError


@cache
def model() -> OpenAIChatModel:
    """Create the model at first use; the environment sets address, key and name."""
    return OpenAIChatModel(os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), stream=False)


class Seat:
    """One seat, played by an agent that is named after it.

    Each question gets a new agent, with which the seat corrects unclear answers; an agent that
    remembers is kept for the game.
    """

    def __init__(
        self,
        style: prompts.Style = prompts.FULL,
        formatter: Callable[[FormatterBase], FormatterBase] | None = None,
    ) -> None:
        """Take how much the agent reads, and what wraps the formatter of its prompts."""
        self.style = style
        own = OpenAIChatFormatter()
        self.formatter = formatter(own) if formatter else own
        self.agent: Player | None = None
        self.read = 0

    async def answer(self, request: Request) -> str:
        """Ask the agent."""
        agent = self.agent
        if agent is None or not (request.problem or self.style.remembers):
            agent = self.agent = Player(
                prompts.name(request.seat),
                prompts.system(request, self.style),
                model(),
                self.formatter,
            )
        text = prompts.user(request, self.style, self.read)
        if self.style.remembers:
            self.read = len(request.lines)
        reply = await agent(Msg("user", text, "user"))
        return prompts.spoken(reply.get_text_content() or "")
