"""A prompt budget as an agent middleware: it cuts the request and not the agent's state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agl_budget import FittedPrompt, PromptBudget
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, BaseMessage, convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool


class PromptBudgetMiddleware(AgentMiddleware[Any, Any]):
    """Cuts the prompts of an agent of ``create_agent`` as `agl_budget.PromptBudget` does.

    Outside a rollout it does nothing, unless the budget has its own ``count``. Put it last in the
    list: additions of later middleware to the request are not counted.
    """

    def __init__(self, budget: PromptBudget | int | None = None) -> None:
        """Set a budget.

        Args:
            budget: A `PromptBudget`, or a number of tokens. When None, the agent's number in the
                run's ``prompt_budgets``, else three quarters of the model's context.
        """
        super().__init__()
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Cut the request, then send it."""
        messages = _system(request) + [_converted(message) for message in request.messages]
        return handler(_cut(request, self.budget.plan(messages, tools=_tools(request))))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Cut the request, then send it."""
        messages = _system(request) + [_converted(message) for message in request.messages]
        return await handler(
            _cut(request, await self.budget.aplan(messages, tools=_tools(request)))
        )


def _system(request: ModelRequest[Any]) -> list[dict[str, Any]]:
    return [] if request.system_message is None else [_converted(request.system_message)]


def _converted(message: BaseMessage) -> dict[str, Any]:
    """Convert one message to OpenAI's form."""
    (converted,) = convert_to_openai_messages([message])
    return converted


def _tools(request: ModelRequest[Any]) -> list[dict[str, Any]]:
    return [convert_to_openai_tool(tool) for tool in request.tools]


def _cut(request: ModelRequest[Any], plan: FittedPrompt) -> ModelRequest[Any]:
    if not plan.cut:
        return request
    before = len(_system(request))
    left: list[AnyMessage] = []
    for at, message in zip(plan.kept, plan.messages, strict=True):
        if at >= before:
            left.append(_with_content(request.messages[at - before], message["content"]))
    return request.override(messages=left)


def _with_content(message: AnyMessage, content: Any) -> AnyMessage:
    if _converted(message)["content"] == content:
        return message
    return message.model_copy(update={"content": content})
