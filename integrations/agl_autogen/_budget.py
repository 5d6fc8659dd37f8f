"""A model context that cuts prompts to a budget, counted in the served model's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from agl_budget import Message, PromptBudget
from autogen_core import Component, FunctionCall, Image
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import ToolSchema
from pydantic import BaseModel

_ROLES: Final = {SystemMessage: "system", UserMessage: "user", AssistantMessage: "assistant"}


class PromptBudgetContextConfig(BaseModel):
    """Configuration with which AutoGen saves a `PromptBudgetContext`."""

    max_tokens: int | None = None
    system_message: str = ""
    tool_schema: list[ToolSchema] = []
    initial_messages: list[LLMMessage] | None = None


class PromptBudgetContext(ChatCompletionContext, Component[PromptBudgetContextConfig]):
    """Stores all messages, and gives the agent those that fit into an `agl_budget.PromptBudget`.

    Outside a rollout the agent gets all messages.
    """

    component_config_schema = PromptBudgetContextConfig
    component_provider_override = "agl_autogen.PromptBudgetContext"

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        system_message: str = "",
        tool_schema: Sequence[ToolSchema] = (),
        initial_messages: list[LLMMessage] | None = None,
    ) -> None:
        """Set the budget of one agent.

        Args:
            max_tokens: Tokens of a prompt. When None, the agent's number in the run's
                ``prompt_budgets``, else three quarters of the model's context.
            system_message: The agent's system message, which AutoGen adds after this context: it
                is counted and never cut.
            tool_schema: ``tool.schema`` of each of the agent's tools: counted and never cut.
            initial_messages: As in AutoGen's own contexts.

        Raises:
            ConfigError: the budget is not a positive number.
        """
        super().__init__(initial_messages)
        self._budget = PromptBudget(max_tokens)
        self._system_message = system_message
        self._tool_schema = list(tool_schema)

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages that fit; those without changes are the same objects.

        Raises:
            ContextOverflowError: system message, tools and the last turn alone exceed the budget.
            ConfigError: no budget is known.
            EngineError: the gateway does not answer.
        """
        messages = list(self._messages)
        wire: list[Message] = []
        if self._system_message:
            wire.append({"role": "system", "content": self._system_message})
        places = [-1] * len(wire)
        for place, message in enumerate(messages):
            for form in _forms(message):
                wire.append(form)
                places.append(place)
        fitted = await self._budget.aplan(wire, tools=[_tool(each) for each in self._tool_schema])
        if not fitted.cut:
            return messages
        kept: dict[int, list[tuple[Message, Message]]] = {}
        for position, form in zip(fitted.kept, fitted.messages, strict=True):
            kept.setdefault(places[position], []).append((wire[position], form))
        return [_refilled(messages[place], kept[place]) for place in sorted(kept) if place >= 0]

    def _to_config(self) -> PromptBudgetContextConfig:
        return PromptBudgetContextConfig(
            max_tokens=self._budget.max_tokens,
            system_message=self._system_message,
            tool_schema=self._tool_schema,
            initial_messages=self._initial_messages,
        )

    @classmethod
    def _from_config(cls, config: PromptBudgetContextConfig) -> PromptBudgetContext:
        return cls(
            config.max_tokens,
            system_message=config.system_message,
            tool_schema=config.tool_schema,
            initial_messages=config.initial_messages,
        )


def _forms(message: LLMMessage) -> Iterator[Message]:
    """Yield the message in OpenAI's form, in which each tool result is one message."""
    if isinstance(message, FunctionExecutionResultMessage):
        for result in message.content:
            yield {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
    elif isinstance(message, AssistantMessage) and not isinstance(message.content, str):
        calls = [_call(call) for call in message.content]
        yield {"role": "assistant", "content": message.thought, "tool_calls": calls}
    else:
        content = message.content
        parts = content if isinstance(content, str) else [_part(each) for each in content]
        yield {"role": _ROLES[type(message)], "content": parts}


def _call(call: FunctionCall) -> Message:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _part(part: Any) -> Message:
    if isinstance(part, Image):
        return cast("Message", part.to_openai_format())
    return {"type": "text", "text": part}


def _tool(schema: ToolSchema) -> Message:
    return {"type": "function", "function": dict(schema)}


def _refilled(message: LLMMessage, forms: Sequence[tuple[Message, Message]]) -> LLMMessage:
    """Return the message itself, or a copy with the cut texts."""
    if all(form is given for given, form in forms):
        return message
    contents = [form["content"] for _, form in forms]
    if isinstance(message, FunctionExecutionResultMessage):
        results = [
            result.model_copy(update={"content": content})
            for result, content in zip(message.content, contents, strict=True)
        ]
        return message.model_copy(update={"content": results})
    if isinstance(message, AssistantMessage) and not isinstance(message.content, str):
        return message.model_copy(update={"thought": contents[0]})
    if isinstance(contents[0], str):
        return message.model_copy(update={"content": contents[0]})
    parts = [
        cut["text"] if isinstance(part, str) else part
        for part, cut in zip(message.content, contents[0], strict=True)
    ]
    return message.model_copy(update={"content": parts})
