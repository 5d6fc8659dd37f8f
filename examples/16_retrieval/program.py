"""An agent of the OpenAI Agents SDK that answers questions with a retriever.

The retriever is an MCP server over streamable HTTP. The program contains no training code; the
environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set the model's endpoint.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, RunContextWrapper, Runner, UserError
from agents.mcp import MCPServerStreamableHttp
from agents.tool_context import ToolContext

MODEL = "gpt-4o-mini"
SYSTEM = "Search, then answer in <answer></answer>. Use few words."
MOST_TURNS = 4
"""Model calls of one question: three searches and the answer."""
NO_QUERY = "The search needs a query."
TIMEOUT_S = 60.0
"""Time limit of one request to the retriever."""
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)


class RetrieverError(Exception):
    """The retriever does not answer, or not with chunks."""

    def __init__(self, url: str, error: BaseException) -> None:
        """Name the address and the cause."""
        cause = f"{type(error).__name__}: {str(error).rstrip('.')}"
        super().__init__(f"the retriever at {url} failed ({cause}). Check that it runs")


async def ask(question: str, url: str) -> str:
    """Answer a question with the retriever at ``url``; return the agent's last words.

    They are empty where it called a tool that is not there, its text was cut off at the limit of
    tokens, or it ended without an answer.

    Raises:
        RetrieverError: the retriever cannot be reached, or fails.
    """
    retriever = MCPServerStreamableHttp(
        {"url": url, "timeout": TIMEOUT_S},
        name="retriever",
        cache_tools_list=True,
        client_session_timeout_seconds=TIMEOUT_S,
        failure_error_function=partial(_what_the_model_reads, url),
    )
    try:
        await retriever.connect()
    except Exception as error:
        raise RetrieverError(url, error) from error
    try:
        researcher = Agent(
            name="researcher", instructions=SYSTEM, model=MODEL, mcp_servers=[retriever]
        )
        run = await Runner.run(researcher, question, max_turns=MOST_TURNS)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return ""
    except UserError as error:
        if isinstance(error.__cause__, RetrieverError):
            raise error.__cause__ from error.__cause__.__cause__
        raise
    finally:
        await retriever.cleanup()
    return str(run.final_output)


def _what_the_model_reads(url: str, context: RunContextWrapper[Any], error: Exception) -> str:
    """Return a message for a call without a query; raise an error of the retriever."""
    arguments = context.tool_arguments if isinstance(context, ToolContext) else ""
    try:
        called = json.loads(arguments)
    except ValueError:
        called = None
    if not isinstance(called, dict) or "query" not in called:
        return NO_QUERY
    raise RetrieverError(url, error) from error


def answer_of(text: str) -> str | None:
    """Return what the last pair of tags encloses, or None without a pair."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None
