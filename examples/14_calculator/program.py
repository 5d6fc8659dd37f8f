"""An AutoGen agent that solves word problems with a calculator, which an MCP server offers.

The program contains no training code. The environment variables ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from functools import cache

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import TextMessage, ToolCallExecutionEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from calculator import ENDED, CalculatorError, calculator

MODEL = "gpt-4o-mini-2024-07-18"
SYSTEM = (
    "Use the calculator. End with a line of Answer: and the number, or the letter of an option."
)
MOST_CALLS = 3
"""Calls of the model for a problem; the last of them must be the answer."""


async def solve(question: str) -> str:
    """Solve a problem with a new agent; return its last text, empty if there is none.

    Raises:
        CalculatorError: no server; the next problem starts a new one.
    """
    server = await calculator()
    solver = AssistantAgent(
        "solver",
        client(),
        tools=[*server.tools],
        system_message=SYSTEM,
        max_tool_iterations=MOST_CALLS,
    )
    result = await solver.run(task=question)
    if failed(result) and not await server.responds():
        raise CalculatorError(ENDED)
    last = result.messages[-1]
    return last.content if isinstance(last, TextMessage) and last.source == "solver" else ""


def failed(result: TaskResult) -> bool:
    """Whether a call of a tool failed; AutoGen gives the model the error as a text."""
    ran = [each for each in result.messages if isinstance(each, ToolCallExecutionEvent)]
    return any(call.is_error for each in ran for call in each.content)


@cache
def client() -> OpenAIChatCompletionClient:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAIChatCompletionClient(model=MODEL)
